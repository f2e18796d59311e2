"""Runs: configuration, run directories, starting from other weights."""
