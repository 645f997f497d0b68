"""The load generator: `python -m benchmarks load` drives a server from a process of its own."""
