"""The load generator: prepared requests, sent in a pattern by several processes, counted once each.

pattern.py    closed loop, open loop           client.py     one process: warms up, waits for the start, sends
loops.py      the two loops, on any target     generator.py  starts the processes, merges what they counted
target.py     gRPC or HTTP, bytes in and out   outcome.py    what a run gave, as figures
tally.py      what one process counted         null_server.py, ceiling.py   the generator's own
case.py       loads that take turns            summary.py    several rounds as figures
"""
