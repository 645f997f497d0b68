"""Drives running services, or another product over HTTP: closed or open loop, deadlines.

A target is checked first; a warm-up is followed by a window, in which calls count and CPU seconds are measured of
this process and of those that it watches. Latencies of an open loop count from when a request was due, sent or not.
MiniLM's files allow 256 tokens: workloads with longer texts need a worker with --max-tokens 512.
"""

import argparse
import asyncio
import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load import loops
from benchmarks.load.loops import OK, Call, LoadFailed, Send
from benchmarks.load.processor import CpuSeconds, peak_mebibytes
from benchmarks.load.target import reached
from benchmarks.result import number, table
from benchmarks.workloads import MINILM, Workload, named

CLIENTS = "clients"
"""Name of this process among those whose CPU is measured."""
LONGEST = 600.0
"""Most seconds of a call that has no deadline of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A closed loop of `clients`, or an open one of `rate` requests a second where that is above zero.

    `requests`: so many instead of `seconds`, all of which count. `deadline`: seconds of each call, 0 for none.
    `watch`: the processes of each part whose CPU and memory are measured. `model`: its name over HTTP, where
    `reconnecting` opens a connection a call. `slowest`: calls count that were under way in the window, so that its
    edges cut off no slow one. `beside`: a load that is there meanwhile.
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
    watch: Mapping[str, Sequence[int]] = field(default_factory=dict)
    model: str = MINILM
    reconnecting: bool = False
    slowest: bool = False
    beside: "Load | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The calls of each loop, CPU seconds by part, and the clock's times between which they count."""

    calls: Sequence[Sequence[Call]]
    spent: Mapping[str, CpuSeconds]
    start: float
    stop: float


async def drive(load: Load) -> dict[str, Any]:
    """Runs the load; gives `figures` of all calls, and `statuses` with counts. Raises LoadFailed."""
    async with AsyncExitStack() as cleanup:
        sends = [(part, await cleanup.enter_async_context(_reached(part))) for part in (load, load.beside) if part]
        start = asyncio.get_running_loop().time() + (0 if load.requests else load.warmup)
        stop = float("inf") if load.requests else start + load.seconds
        window = await watched([_loop(part, send, stop) for part, send in sends], start, stop, load.watch)
    return measured(load, window)


def _reached(load: Load) -> AbstractAsyncContextManager[Send]:
    options: dict[str, Any] = {"seed": load.seed, "model": load.model, "reconnecting": load.reconnecting}
    return reached(load.address, load.workload, deadline=load.deadline or LONGEST, **options)


async def _loop(load: Load, send: Send, stop: float) -> list[Call]:
    turns = loops.turns(len(load.workload.requests), load.requests)
    if load.rate:
        return await loops.opened(send, turns, loops.gaps(load.rate, load.seed), stop)
    return await loops.closed(send, turns, load.clients, stop)


async def watched(
    loads: Sequence[Coroutine[Any, Any, list[Call]]], start: float, stop: float, watch: Mapping[str, Sequence[int]]
) -> Window:
    """Runs loops, each of which ends by itself at `stop`, or, where that is infinite, with its last request."""
    clock, pids = asyncio.get_running_loop().time, {CLIENTS: [os.getpid()], **watch}
    sending = [asyncio.create_task(load) for load in loads]
    await asyncio.wait(sending, timeout=max(0.0, start - clock()))
    before = {name: CpuSeconds.of(members) for name, members in pids.items()}
    await asyncio.wait(sending, timeout=None if stop == float("inf") else max(0.0, stop - clock()))
    spent = {name: CpuSeconds.of(members) - before[name] for name, members in pids.items()}
    stop = min(stop, clock())
    return Window(calls=await asyncio.gather(*sending), spent=spent, start=start, stop=stop)


def measured(load: Load, window: Window) -> dict[str, Any]:
    """Computes the figures of a window: of the load, of the one beside it, CPU and memory of each part.

    Raises LoadFailed where nothing was answered.
    """
    calls, start, stop = window.calls[0], window.start, window.stop
    inside, seconds = loops.counted(calls, start, stop, is_open=load.rate > 0)
    if load.slowest or not any(call.status == OK for call in inside):  # else all outlast a short window
        inside, seconds = loops.under_way(calls, start, stop)
    if not any(call.status == OK for call in inside):
        statuses = ", ".join(sorted({call.status for call in calls}))
        raise LoadFailed(f"{load.workload.says}: no answer in the window ({statuses})")
    figures = _figures(load, inside, seconds)
    good = figures["requests/s"] * (stop - start)
    if load.beside is not None:
        beside = _figures(load.beside, *loops.counted(window.calls[1], start, stop))
        figures |= {f"beside: {name}": value for name, value in beside.items()}
    figures |= {f"{name}: peak MiB": sum(map(peak_mebibytes, members)) for name, members in load.watch.items()}
    for name, spent in window.spent.items():
        figures[f"{name}: CPU ms/request"] = spent.whole / good * 1e3
        if name != CLIENTS:  # they have nothing but an event loop
            figures[f"{name}'s event loop: CPU ms/request"] = spent.event_loop / good * 1e3
            figures[f"{name}'s gRPC threads: CPU ms/request"] = spent.grpc / good * 1e3
    return {"figures": figures, "statuses": Counter(call.status for call in inside)}


def _figures(load: Load, calls: Sequence[Call], seconds: float) -> dict[str, float]:
    return loops.figures(calls, seconds, [sum(request) for request in load.workload.requests], load.deadline)


def main(arguments: argparse.Namespace) -> int:
    """Runs `python -m benchmarks load`; gives 1 where the run cannot be counted."""
    workload = named(arguments.scale)[arguments.workload]
    options = {name: value for name, value in vars(arguments).items() if name in Load.__dataclass_fields__}
    watch = dict[str, list[int]]()
    for name, pid in (pair.split("=") for pair in arguments.watch):
        watch.setdefault(name, []).append(int(pid))
    options |= {"workload": workload, "clients": arguments.clients or workload.in_flight[0], "watch": watch}
    try:
        outcome = asyncio.run(drive(Load(address=arguments.target, **options)))
    except (LoadFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = [[name, number(value)] for name, value in outcome["figures"].items()]
    print(json.dumps(outcome) if arguments.json else f"{table(['', 'all'], rows)}\n\n{outcome['statuses']}")
    return 0


if __name__ == "__main__":  # a process of its own: a pickled `Load` on standard input, JSON on standard output
    print(json.dumps(asyncio.run(drive(pickle.load(sys.stdin.buffer)))))
