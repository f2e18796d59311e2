"""Denoisers: a backbone, a process and a parameterization behind one call."""
