"""The closed and the open loop on any target, by the running event loop's clock (which tests may replace).

A closed loop's client sends its next request when the last is answered, and a moment later where that was refused. The
open loop sends when a request is due, whatever the answers do, and times each from that moment: one that was due in a
stall counts with the whole stall.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

REFUSED = "RESOURCE_EXHAUSTED"
BACKOFF = 0.5
"""Seconds: who is refused and asks again at once does nothing else, and takes the cores from those who compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call: when it was due and when it ended, by the loop's clock; a status such as OK; which request."""

    due: float
    ended: float
    status: str
    request: int


class Target(Protocol):
    """What is measured."""

    async def call(self, request: int) -> str:
        """Sends that request and waits; the status of the answer. Never raises."""


async def closed(target: Target, turns: Iterator[int], clients: int, stop: float) -> list[Call]:
    """`clients` loops until `stop`, or until the turns end."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()

    async def client() -> None:
        for request in turns:
            due = clock()
            if due >= stop:
                return
            status = await target.call(request)
            calls.append(Call(due=due, ended=clock(), status=status, request=request))
            if status == REFUSED:
                await asyncio.sleep(BACKOFF)

    await asyncio.gather(*(client() for _ in range(clients)))
    return calls


async def opened(target: Target, turns: Iterator[int], gaps: Iterator[float], stop: float) -> list[Call]:
    """One request each gap of seconds until `stop`; waits for every answer."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()
    due = clock()

    async def call(request: int, due: float) -> None:
        status = await target.call(request)
        calls.append(Call(due=due, ended=clock(), status=status, request=request))

    async with asyncio.TaskGroup() as under_way:
        for request, gap in zip(turns, gaps, strict=False):
            due += gap
            if due >= stop:
                break
            if due > clock():
                await asyncio.sleep(due - clock())
            under_way.create_task(call(request, due))
    return calls


def gaps(rate: float, seed: int) -> Iterator[float]:
    """Seconds between requests at that rate: those of Poisson arrivals."""
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(rate)
