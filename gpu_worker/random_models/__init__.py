"""Known shapes and tiny models with random weights, for tests and for measuring."""
