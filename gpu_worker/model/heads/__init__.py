"""Heads turn a step's hidden states into vectors, weights and logits: one product over all rows, never one a text."""
