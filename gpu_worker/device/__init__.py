"""The device on which the model computes: its choice, dtype, memory and timing."""
