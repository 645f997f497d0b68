"""The closed and the open loop on any target, by the running event loop's clock (which tests may replace).

A closed loop's client sends its next request when the last is answered, and a moment later where that was refused. The
open loop sends when a request is due, whatever the answers do, and times each from that moment: one that was due in a
stall counts with the whole stall.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

REFUSED = "RESOURCE_EXHAUSTED"
BACKOFF = 0.5
"""Seconds that a refused client waits: repeating at once would take the cores from the server."""


Sender = tuple[tuple[str, str], ...]
"""A sender: metadata with its fairness key and its priority, where it has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call: when it was due and when it ended, by the loop's clock; a status such as OK; its request and sender."""

    due: float
    ended: float
    status: str
    request: int
    sender: Sender = ()


class Target(Protocol):
    """The server that is measured."""

    async def call(self, request: int, sender: Sender) -> str:
        """Sends a request and gives the status of its answer. Never raises."""


async def closed(
    target: Target, turns: Iterator[int], senders: Sequence[Sender], clients: int, stop: float
) -> list[Call]:
    """Runs `clients` loops until `stop`, or until the turns end; client n is sender n, cyclic."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()

    async def client(sender: Sender) -> None:
        for request in turns:
            due = clock()
            if due >= stop:
                return
            status = await target.call(request, sender)
            calls.append(Call(due=due, ended=clock(), status=status, request=request, sender=sender))
            if status == REFUSED:
                await asyncio.sleep(BACKOFF)

    await asyncio.gather(*(client(senders[number % len(senders)]) for number in range(clients)))
    return calls


async def opened(
    target: Target, turns: Iterator[int], senders: Sequence[Sender], gaps: Iterator[float], stop: float
) -> list[Call]:
    """Sends a request after each gap until `stop`; waits for every answer. Request n is of sender n, cyclic."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()
    due = clock()

    async def call(request: int, sender: Sender, due: float) -> None:
        status = await target.call(request, sender)
        calls.append(Call(due=due, ended=clock(), status=status, request=request, sender=sender))

    async with asyncio.TaskGroup() as under_way:
        for number, (request, gap) in enumerate(zip(turns, gaps, strict=False)):
            due += gap
            if due >= stop:
                break
            if due > clock():
                await asyncio.sleep(due - clock())
            under_way.create_task(call(request, senders[number % len(senders)], due))
    return calls


def gaps(rate: float, seed: int) -> Iterator[float]:
    """Draws the seconds between requests at that rate, of Poisson arrivals."""
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(rate)


def senders(keys: str, priorities: str) -> list[Sender]:
    """Lists the senders of `a:3,b` (three of four calls are of key a) and of `0,0,1` (every third call has priority 1).

    Raises ValueError for a weight that is no whole number.
    """
    weighed = [(name, int(weight or 1)) for name, _, weight in (entry.partition(":") for entry in keys.split(","))]
    names = [name for name, weight in weighed for _ in range(weight)]
    values = {"selvage-key": names, "selvage-priority": priorities.split(",")}
    combinations = product(*reversed(values.values()))  # each key meets each priority
    return [
        tuple((name, value) for name, value in zip(values, reversed(combination), strict=True) if value)
        for combination in combinations
    ]
