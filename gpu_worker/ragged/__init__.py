"""Batches of sequences laid end to end without padding, and their upload to the device."""
