"""Samplers: objects that draw sequences from a denoiser and a process."""
