"""Drives services that run, or a peer over HTTP: closed or open loop, deadlines, keys, priorities.

A target is checked first; a warm-up is followed by a window, in which calls count and CPU seconds are told of this
process and of those that it watches. Latencies of an open loop are from when a request was due, sent or not. MiniLM's
files allow 256 tokens: workloads with longer texts want a worker with --max-tokens 512.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from benchmarks.load import loops, outcome
from benchmarks.load.processor import CpuSeconds, peak_mebibytes
from benchmarks.load.target import reached
from benchmarks.result import number, table
from benchmarks.workloads import Workload, named

CLIENTS = "clients"
"""This process, among those whose CPU is told."""
LONGEST = 300.0
"""Seconds of a call that has no deadline of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop of `clients`, or an open one of `rate` requests a second where that is above zero.

    `requests`: so many instead of `seconds`, all of which count. `deadline`: seconds of each call, 0 for none.
    `keys`, `priorities`: see `loops.senders`. `watch`: process ids whose CPU is told, by name.
    """

    address: str
    workload: Workload
    clients: int = 1
    rate: float = 0.0
    seconds: float = 5.0
    warmup: float = 0.5
    requests: int = 0
    deadline: float = 0.0
    keys: str = ""
    priorities: str = ""
    seed: int = 1
    watch: Mapping[str, int] = field(default_factory=dict)


async def drive(load: Load) -> dict[str, Any]:
    """`figures` of all calls and `by sender`; how often each status came. Raises LoadFailed."""
    deadline = load.deadline or LONGEST
    async with reached(load.address, load.workload, seed=load.seed, deadline=deadline) as target:
        await target.check()
        start = asyncio.get_running_loop().time() + (0 if load.requests else load.warmup)
        calls, spent, stop = await _run(load, target, start)
    inside, seconds = outcome.counted(calls, start, stop, is_open=load.rate > 0)
    if not inside:
        raise outcome.LoadFailed("nothing was answered in the window; give more seconds")
    tokens = [sum(each) for each in load.workload.requests]
    figures = outcome.figures(inside, seconds, tokens, load.deadline)
    figures |= {f"{name}: peak MiB": peak_mebibytes(pid) for name, pid in load.watch.items()}
    if good := figures["requests/s"] * (stop - start):
        figures |= {f"{name}: CPU ms/request": each.whole / good * 1e3 for name, each in spent.items()}
        loops_ = {name: each.event_loop for name, each in spent.items() if name != CLIENTS}  # who has nothing else
        figures |= {f"{name}'s event loop: CPU ms/request": each / good * 1e3 for name, each in loops_.items()}
    by_sender = outcome.by_sender(inside, seconds, tokens, load.deadline)
    return {"figures": figures, "by sender": by_sender, "statuses": Counter(each.status for each in inside)}


async def _run(
    load: Load, target: loops.Target, start: float
) -> tuple[list[loops.Call], Mapping[str, CpuSeconds], float]:
    """All calls, CPU seconds of the window by process, and when the window ended."""
    clock, pids = asyncio.get_running_loop().time, {CLIENTS: os.getpid(), **load.watch}
    stop = float("inf") if load.requests else start + load.seconds
    known = len(load.workload.requests)
    turns = islice((number % known for number in count()), load.requests or None)
    who = loops.senders(load.keys, load.priorities)
    if load.rate:
        loop = loops.opened(target, turns, who, loops.gaps(load.rate, load.seed), stop)
    else:
        loop = loops.closed(target, turns, who, load.clients, stop)
    sending = asyncio.create_task(loop)
    await asyncio.wait({sending}, timeout=max(0.0, start - clock()))
    before = {name: CpuSeconds.of(pid) for name, pid in pids.items()}
    await asyncio.wait({sending}, timeout=None if load.requests else stop - clock())
    spent = {name: CpuSeconds.of(pid) - before[name] for name, pid in pids.items()}
    calls = await sending
    return calls, spent, min(stop, clock())


def main(options: argparse.Namespace) -> int:
    """`python -m benchmarks load`; 1 where the run cannot be counted."""
    workload = named(options.scale)[options.workload]
    settings = {name: value for name, value in vars(options).items() if name in Load.__dataclass_fields__}
    watch = {name: int(pid) for name, pid in (pair.split("=") for pair in options.watch)}
    settings |= {"workload": workload, "clients": options.clients or workload.in_flight[0], "watch": watch}
    try:
        measured = asyncio.run(drive(Load(address=options.target, **settings)))
    except (outcome.LoadFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    columns = {"all": measured["figures"], **measured["by sender"]}
    rows = [[name, *(number(column.get(name, 0.0)) for column in columns.values())] for name in measured["figures"]]
    print(json.dumps(measured) if options.json else f"{table(['', *columns], rows)}\n\n{measured['statuses']}")
    return 0
