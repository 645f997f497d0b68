"""Attention over packed sequences: what a layer asks, and each way to answer."""
