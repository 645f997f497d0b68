"""Kernels for processors in C++ (`source`), built by `build` for the PyTorch that is installed, and loaded by `library`."""
