"""The load generator: `python -m benchmarks load` drives a server from a process of its own.

loops.py        the closed and the open loop, on any target, by the event loop's clock
target.py       where calls go: gRPC with deadlines, keys and priorities, or HTTP
outcome.py      what came of all calls: rates, goodput, latencies, refusals
processor.py    CPU seconds of processes, a thread apart
generator.py    one run: check, warm-up, window, CPU seconds around it; the command
null_server.py  a grpc.aio server that answers at once: what gRPC alone costs
"""
