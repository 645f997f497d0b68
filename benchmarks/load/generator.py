"""Drives running services, or a peer over HTTP: closed or open loop, deadlines.

A target is checked first; a warm-up is followed by a window, in which calls count and CPU seconds are measured of
this process and of those that it watches. Latencies of an open loop count from when a request was due, sent or not.
MiniLM's files allow 256 tokens: workloads with longer texts need a worker with --max-tokens 512.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load import loops
from benchmarks.load.loops import Call, LoadFailed
from benchmarks.load.processor import CpuSeconds, peak_mebibytes
from benchmarks.load.target import reached
from benchmarks.result import number, table
from benchmarks.workloads import Workload, batches, named

CLIENTS = "clients"
"""Name of this process among those whose CPU is measured."""
LONGEST = 300.0
"""Most seconds of a call that has no deadline of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop of `clients`, or an open one of `rate` requests a second where that is above zero.

    `requests`: so many instead of `seconds`, all of which count. `deadline`: seconds of each call, 0 for none.
    `watch`: process ids whose CPU is measured, by name.
    """

    address: str
    workload: Workload
    clients: int = 1
    rate: float = 0.0
    seconds: float = 5.0
    warmup: float = 0.5
    requests: int = 0
    deadline: float = 0.0
    seed: int = 1
    watch: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The calls of each loop, CPU seconds by process, and the clock's times between which they count."""

    calls: Sequence[list[Call]]
    spent: Mapping[str, CpuSeconds]
    start: float
    stop: float


async def watched(
    loads: Sequence[Coroutine[Any, Any, list[Call]]], start: float, stop: float, watch: Mapping[str, int]
) -> Window:
    """Runs loops, each of which ends by itself at `stop`, or, where that is infinite, with its last request."""
    clock, pids = asyncio.get_running_loop().time, {CLIENTS: os.getpid(), **watch}
    sending = [asyncio.create_task(load) for load in loads]
    await asyncio.wait(sending, timeout=max(0.0, start - clock()))
    before = {name: CpuSeconds.of(pid) for name, pid in pids.items()}
    await asyncio.wait(sending, timeout=None if stop == float("inf") else max(0.0, stop - clock()))
    spent = {name: CpuSeconds.of(pid) - before[name] for name, pid in pids.items()}
    stop = min(stop, clock())
    return Window(calls=await asyncio.gather(*sending), spent=spent, start=start, stop=stop)


async def drive(load: Load) -> dict[str, Any]:
    """Runs the load; gives `figures` of all calls, and `statuses` with counts. Raises LoadFailed."""
    deadline, requests = load.deadline or LONGEST, len(load.workload.requests)
    async with reached(load.address, load.workload, seed=load.seed, deadline=deadline) as target:
        await target.check()
        start = asyncio.get_running_loop().time() + (0 if load.requests else load.warmup)
        stop, turns = float("inf") if load.requests else start + load.seconds, loops.turns(requests, load.requests)
        if load.rate:
            calls = loops.opened(target, turns, loops.gaps(load.rate, load.seed), stop)
        else:
            calls = loops.closed(target, turns, load.clients, stop)
        window = await watched([calls], start, stop, load.watch)
    inside, seconds = loops.counted(window.calls[0], start, window.stop, is_open=load.rate > 0)
    if not inside:
        raise LoadFailed("nothing was answered in the window; give more seconds")
    figures = loops.figures(inside, seconds, [sum(request) for request in load.workload.requests], load.deadline)
    figures |= {f"{name}: peak MiB": peak_mebibytes(pid) for name, pid in load.watch.items()}
    if good := figures["requests/s"] * (window.stop - start):
        for name, spent in window.spent.items():
            figures[f"{name}: CPU ms/request"] = spent.whole / good * 1e3
            if name != CLIENTS:  # they have nothing but an event loop
                figures[f"{name}'s event loop: CPU ms/request"] = spent.event_loop / good * 1e3
    return {"figures": figures, "statuses": Counter(call.status for call in inside)}


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks load`; gives 1 where the run cannot be counted."""
    workload = (named(arguments.scale) | batches())[arguments.workload]
    options = {name: value for name, value in vars(arguments).items() if name in Load.__dataclass_fields__}
    watch = {name: int(pid) for name, pid in (pair.split("=") for pair in arguments.watch)}
    options |= {"workload": workload, "clients": arguments.clients or workload.in_flight[0], "watch": watch}
    try:
        measured = asyncio.run(drive(Load(address=arguments.target, **options)))
    except (LoadFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = [[name, number(value)] for name, value in measured["figures"].items()]
    print(json.dumps(measured) if arguments.json else f"{table(['', 'all'], rows)}\n\n{measured['statuses']}")
    return 0
