"""Measurements: `python -m benchmarks NAME` runs both sides in turns, writes one JSON, prints one table. See README.md.

workloads.py   what is measured, as data: lengths, texts, models, shapes
rounds.py      sides in turns; medians with quartiles; each round's own ratio
limit.py       products alone: what nothing could beat on this processor
machine.py     where and with what a result was measured
result.py      the JSON that every benchmark writes, and its table
ours.py        the worker's engine in process; the one file here that knows how it is driven
load/          the load generator: closed and open loops, deadlines, keys, priorities
peers/         others in processes of their own, and our engine likewise
render.py      README's table, docs/measured.md and docs/plots, from the results
"""
