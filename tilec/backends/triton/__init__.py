"""Generated Triton kernels."""
