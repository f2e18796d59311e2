"""Masked discrete diffusion over token sequences, whatever the tokens are."""
