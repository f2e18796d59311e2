"""Training with Lightning: the module, the optimiser, the callbacks, the run directory."""
