"""The selective scan of Mamba: reference, CPU, Triton and CUDA kernels behind one call."""
