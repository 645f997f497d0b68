"""Measurements: `python -m benchmarks NAME`; README.md beside this says what each is, and what each file knows."""
