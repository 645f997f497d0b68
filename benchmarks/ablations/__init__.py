"""Each idea that this system was built from, on and off in the same process; `python -m benchmarks.ablations`."""
