"""The closed and the open loop, on any target, by the running event loop's clock (which tests may replace).

A window says which answers count. The closed loop goes by the time of the answer: clients run before and through it,
so that what is under way at its edges evens out. The open loop goes by the intended start, and waits for every answer:
a request that was due in a stall counts with the whole stall, though nobody could have sent it earlier.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from benchmarks.load.tally import Reply, Tally


class Target(Protocol):
    """What is measured."""

    async def call(self, index: int, lane: int) -> Reply:
        """Sends request `index`; `lane` is the client's number, which chooses among several servers. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Sending begins at `begin`; what happens from `start` on and before `stop` counts."""

    begin: float
    start: float
    stop: float = inf

    def holds(self, time: float) -> bool:
        """Whether that time counts."""
        return self.start <= time < self.stop


async def closed_loop(target: Target, turns: Iterator[int], tally: Tally, lanes: Sequence[int], window: Window) -> None:
    """One client a lane; `turns` are the requests in order, shared by all."""
    clock = asyncio.get_running_loop().time
    await asyncio.sleep(window.begin - clock())

    async def client(lane: int) -> None:
        for index in turns:
            sent = clock()
            if sent >= window.stop:
                return
            reply = await target.call(index, lane)
            answered = clock()
            if window.holds(answered):
                tally.count(index, reply, answered - sent, answered)
            else:
                tally.pass_by(answered, before=answered < window.start)

    await asyncio.gather(*(client(lane) for lane in lanes))


async def open_loop(target: Target, turns: Iterator[int], tally: Tally, gaps: Iterator[float], window: Window) -> None:
    """One request a turn, each `gap` seconds after the one before was due."""
    clock = asyncio.get_running_loop().time
    due, under_way = window.begin, set()

    async def request(index: int, lane: int, due: float) -> None:
        if window.holds(due):
            tally.lateness.record(clock() - due)
        reply = await target.call(index, lane)
        answered = clock()
        if window.holds(due):
            tally.count(index, reply, answered - due, answered)
        else:
            tally.pass_by(answered, before=False)

    for lane, (index, gap) in enumerate(zip(turns, gaps, strict=False)):
        due += gap
        if due >= window.stop:
            break
        if due > clock():
            await asyncio.sleep(due - clock())
        task = asyncio.create_task(request(index, lane, due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)


def poisson_gaps(rate: float, seed: str) -> Iterator[float]:
    """Seconds between arrivals."""
    generator = random.Random(seed)
    while True:
        yield generator.expovariate(rate)
