"""Models of known shapes with random weights, for tests and for measuring: folders that any worker serves."""
