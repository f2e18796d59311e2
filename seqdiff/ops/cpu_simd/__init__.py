"""SIMD vectors, tiles and threads that the CPU kernels share."""
