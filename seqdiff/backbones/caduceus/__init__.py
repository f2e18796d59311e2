"""Caduceus: configuration, network, block diffusion, autoregressive twin and hub format."""
