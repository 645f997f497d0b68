"""Faster ways to the same numbers, each measured at load: linear layers, compiled layers, CUDA graphs, int8."""
