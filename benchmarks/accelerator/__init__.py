"""The engine on an accelerator, in one run that ends in time: `python -m benchmarks.accelerator`, or `make gpu`.

__main__.py   runs the parts, each a process of its own, and merges what they tell
part.py       what a part is; which parts there are
options.py    what all of them are told
limits.py     a part: what the device can do
engine.py     a part: the workloads of one model, without services
services.py   a part: one worker on the device and four frontends
workloads.py  which jobs, to which model, in which pattern
in_flight.py  jobs on their way through an engine, as the scheduler has them
patterns.py   closed loop, burst, a big rerank against its encoder
flops.py      what a token costs a model
goals.py      what others published, and what is wanted
contexts.py   which processes hold the device
report.py     all of it as JSON and as a table
"""
