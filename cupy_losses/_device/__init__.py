"""The CUDA backend: CuPy, kernels, plans."""
