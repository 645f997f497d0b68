"""The pair as real processes: the one way that tests, demo and benchmarks start it."""
