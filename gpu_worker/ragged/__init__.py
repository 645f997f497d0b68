"""Sequences laid end to end without padding, and how their numbers come to the device."""
