"""One step: the sequences of all its jobs packed, what the heads make of them, and one download to the host."""
