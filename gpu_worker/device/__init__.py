"""The device on which the model computes: its choice, number format, memory and timing."""
