"""Kernels for processors in C++ (`source`): `build` builds them for the installed PyTorch, `library` loads them."""
