"""Variant effects and in-silico mutagenesis."""
