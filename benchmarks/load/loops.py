"""The closed and the open loop on any target, by the running event loop's clock, and the figures of their calls.

A closed loop's client sends its next request when the last is answered, and a moment later where that was refused. The
open loop sends when a request is due, whatever the answers do, and times each from that moment: one that was due in a
stall counts with the whole stall.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np

OK, REFUSED, EXPIRED = "OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"
NAMES = {REFUSED: "refused", EXPIRED: "expired"}
BACKOFF = 0.5
"""Seconds that a refused client waits: repeating at once would take the cores from the server."""


class LoadFailed(RuntimeError):
    """Raised for a run that cannot be counted; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call: when it was due and when it ended, by the loop's clock; a status such as OK; its request's number."""

    due: float
    ended: float
    status: str
    request: int


Send = Callable[[int], Awaitable[str]]
"""Sends the request of this number and gives the status of its answer; never raises."""


async def closed(send: Send, turns: Iterator[int], clients: int, stop: float) -> list[Call]:
    """Runs `clients` loops until `stop`, or until the turns end."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()

    async def client() -> None:
        for request in turns:
            due = clock()
            if due >= stop:
                return
            status = await send(request)
            calls.append(Call(due=due, ended=clock(), status=status, request=request))
            if status == REFUSED:
                await asyncio.sleep(BACKOFF)

    await asyncio.gather(*(client() for _ in range(clients)))
    return calls


async def opened(send: Send, turns: Iterator[int], gaps: Iterator[float], stop: float) -> list[Call]:
    """Sends a request after each gap until `stop`; waits for every answer."""
    clock, calls = asyncio.get_running_loop().time, list[Call]()
    due = clock()

    async def call(request: int, due: float) -> None:
        status = await send(request)
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
    """Draws the seconds between requests at that rate, of Poisson arrivals."""
    draw = random.Random(seed)
    while True:
        yield draw.expovariate(rate)


def turns(requests: int, most: int) -> Iterator[int]:
    """Yields the numbers of a workload's requests in turn; `most` of them, or without an end where that is 0."""
    return islice((number % requests for number in count()), most or None)


def counted(calls: Sequence[Call], start: float, stop: float, *, is_open: bool = False) -> tuple[list[Call], float]:
    """Selects the calls of the window, and gives the seconds that rates are divided by.

    An open loop goes by when a call was due. A closed loop goes by the answer, and its span reaches from the last
    answer before the window to the last in it: clients fall into step with the server's batches, and a window's edge
    would gain or lose a whole one.
    """
    if is_open:
        return [call for call in calls if start <= call.due < stop], stop - start
    inside = [call for call in calls if start <= call.ended < stop]
    before = max((call.ended for call in calls if call.ended < start), default=start)
    return inside, max((call.ended for call in inside), default=stop) - before


def under_way(calls: Sequence[Call], start: float, stop: float) -> tuple[list[Call], float]:
    """Selects the calls that were under way in the window, and gives the seconds from the first to the last of them.

    For latencies: `counted` would leave out the slowest calls, which begin before a window or end behind it.
    """
    inside = [call for call in calls if call.due < stop and call.ended >= start]
    first, last = min((call.due for call in inside), default=start), max((call.ended for call in inside), default=stop)
    return inside, last - first


def figures(calls: Sequence[Call], seconds: float, tokens: Sequence[int], deadline: float = 0.0) -> dict[str, float]:
    """Computes rates and latencies.

    `tokens`: those of each request; `deadline`: seconds that an answer may take to be of use, or 0.

    Latencies are of answers with OK: refusals answer fast and would flatter them, so they have their own.
    """
    ended: dict[str, list[Call]] = {OK: []}
    for call in calls:
        ended.setdefault(call.status if call.status == OK else NAMES.get(call.status, "failed"), []).append(call)
    good = ended.pop(OK)
    served = sum(tokens[call.request] for call in good)
    rates = {"requests/s": len(good) / seconds, "tokens/s": served / seconds} | _latency("", good)
    if deadline:
        rates["goodput/s"] = sum(call.ended - call.due <= deadline for call in good) / seconds
    for name, those in ended.items():
        rates |= {f"{name}/s": len(those) / seconds} | (_latency("refused ", those) if name == "refused" else {})
    return rates


def _latency(prefix: str, calls: Sequence[Call]) -> dict[str, float]:
    if not calls:
        return {}
    milliseconds = [(call.ended - call.due) * 1e3 for call in calls]
    quantiles = zip(("p50", "p95", "p99"), np.quantile(milliseconds, (0.5, 0.95, 0.99)), strict=True)
    return {f"{prefix}mean ms": float(np.mean(milliseconds))} | {
        f"{prefix}{name} ms": float(value) for name, value in quantiles
    }
