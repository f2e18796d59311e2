"""RMSNorm: a CPU kernel and the call that chooses it."""
