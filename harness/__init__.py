"""Starts the pair as real processes, for tests, demo and benchmarks."""
