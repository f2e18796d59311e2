"""Baselines for DNA models: Markov chains and a discriminator."""
