"""The device: which one, its number format and its memory."""
