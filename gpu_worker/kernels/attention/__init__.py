"""Attention over packed sequences: what a layer asks for, and the kernels that compute it."""
