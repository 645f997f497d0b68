"""Drives running services, or a peer over HTTP: closed or open loop, deadlines, keys, priorities.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from benchmarks.load import loops, outcome
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
    `keys`, `priorities`: see `loops.senders`. `watch`: process ids whose CPU is measured, by name.
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
    """Runs the load; gives `figures` of all calls and `by sender`, and `statuses` with counts. Raises LoadFailed."""
    deadline = load.deadline or LONGEST
    async with reached(load.address, load.workload, seed=load.seed, deadline=deadline) as target:
        await target.check()
        start = asyncio.get_running_loop().time() + (0 if load.requests else load.warmup)
        calls, spent, stop = await _run(load, target, start)
    inside, seconds = outcome.counted(calls, start, stop, is_open=load.rate > 0)
    if not inside:
        raise outcome.LoadFailed("nothing was answered in the window; give more seconds")
    tokens = [sum(request) for request in load.workload.requests]
    figures = outcome.figures(inside, seconds, tokens, load.deadline)
    figures |= {f"{name}: peak MiB": peak_mebibytes(pid) for name, pid in load.watch.items()}
    if good := figures["requests/s"] * (stop - start):
        figures |= {
            f"{name}: CPU ms/request": seconds_spent.whole / good * 1e3 for name, seconds_spent in spent.items()
        }
        event_loops = {
            name: seconds_spent.event_loop for name, seconds_spent in spent.items() if name != CLIENTS
        }  # the clients have nothing but an event loop
        figures |= {
            f"{name}'s event loop: CPU ms/request": loop_seconds / good * 1e3
            for name, loop_seconds in event_loops.items()
        }
    by_sender = outcome.by_sender(inside, seconds, tokens, load.deadline)
    return {"figures": figures, "by sender": by_sender, "statuses": Counter(call.status for call in inside)}


async def _run(
    load: Load, target: loops.Target, start: float
) -> tuple[list[loops.Call], Mapping[str, CpuSeconds], float]:
    """Runs the loop; gives all calls, CPU seconds of the window by process, and when the window ended."""
    clock, pids = asyncio.get_running_loop().time, {CLIENTS: os.getpid(), **load.watch}
    stop = float("inf") if load.requests else start + load.seconds
    count_of_requests = len(load.workload.requests)
    turns = islice((number % count_of_requests for number in count()), load.requests or None)
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


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks load`; gives 1 where the run cannot be counted."""
    workload = (named(arguments.scale) | batches())[arguments.workload]
    options = {name: value for name, value in vars(arguments).items() if name in Load.__dataclass_fields__}
    watch = {name: int(pid) for name, pid in (pair.split("=") for pair in arguments.watch)}
    options |= {"workload": workload, "clients": arguments.clients or workload.in_flight[0], "watch": watch}
    try:
        measured = asyncio.run(drive(Load(address=arguments.target, **options)))
    except (outcome.LoadFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    columns = {"all": measured["figures"], **measured["by sender"]}
    rows = [[name, *(number(column.get(name, 0.0)) for column in columns.values())] for name in measured["figures"]]
    print(json.dumps(measured) if arguments.json else f"{table(['', *columns], rows)}\n\n{measured['statuses']}")
    return 0
