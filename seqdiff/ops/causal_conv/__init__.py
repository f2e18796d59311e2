"""The depthwise causal convolution: CPU and Triton kernels behind one call."""
