"""Faster ways to the same numbers, each chosen by a rule: linear layers, compiled layers, CUDA graphs, int8."""
