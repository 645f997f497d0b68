"""One client process: `python -m benchmarks.load.client`, started by the generator and by nobody else.

Reads its plan from standard input, learns what requests cost, says `ready`, waits for the time of the start (the
monotonic clock is one for all processes of a machine), sends, says how far it is, and last what it counted.
"""

import asyncio
import json
import pickle
import sys
from contextlib import suppress
from itertools import cycle
from typing import Any

from benchmarks.load.loops import Target, Window, closed_loop, open_loop, poisson_gaps
from benchmarks.load.pattern import Closed
from benchmarks.load.plan import Plan
from benchmarks.load.tally import OK, Tally
from benchmarks.load.target import opened

TELL = 0.25
"""Seconds between two messages of progress."""
LEARNERS = 64
"""Requests of all processes that are under way while learning, at most; that a burst breaks is for the run to tell."""


def say(**message: Any) -> None:
    """One line to the generator."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Client:
    """Process `number` of `parts`."""

    def __init__(self, plan: Plan, number: int, parts: int, target: Target) -> None:
        self._plan, self._number, self._parts, self._target = plan, number, parts, target
        self._pattern = plan.pattern.part(number, parts)
        self._kinds = [request.kind for request in plan.requests]
        self.tally = Tally(self._kinds, plan.times)

    @property
    def _lanes(self) -> range:
        pattern = self._plan.pattern
        return pattern.lanes(self._number, self._parts) if isinstance(pattern, Closed) else range(LEARNERS)

    @property
    def _learners(self) -> range:
        return self._lanes[: max(1, LEARNERS // self._parts)]

    async def learn(self) -> dict[int, int]:
        """Tokens by request, of the requests that are this process's to learn. Raises RuntimeError."""
        learnt: dict[int, int] = {}
        turns = iter(range(self._number, len(self._plan.requests), self._parts))

        async def learner(lane: int) -> None:
            for index in turns:
                reply = await self._target.call(index, lane)
                if reply.status != OK:
                    raise RuntimeError(f"request {index} was answered with {reply.status} before the run began")
                learnt[index] = self._plan.address.tokens(reply.body)

        await asyncio.gather(*(learner(lane) for lane in self._learners))
        return learnt

    async def warm_up(self) -> None:
        """Where a number of requests counts: the same load for some seconds, not counted."""
        if self._pattern.requests is None or not self._plan.warmup:
            return
        now = asyncio.get_running_loop().time()
        window = Window(begin=now, start=now, stop=now + self._plan.warmup)
        turns = cycle(range(self._number % len(self._plan.requests), len(self._plan.requests), self._parts))
        await closed_loop(self._target, turns, Tally(self._kinds), self._lanes, window)

    async def run(self, begin: float) -> None:
        """Sends from `begin` on; for a duration, the first `warmup` seconds do not count."""
        plan, timed = self._plan, self._pattern.requests is None
        start = begin + plan.warmup if timed else begin
        window = Window(begin=begin, start=start, stop=start + self._pattern.length)
        turns = plan.turns(self._number, self._parts)
        if isinstance(self._pattern, Closed):
            await closed_loop(self._target, turns, self.tally, self._lanes, window)
        else:
            gaps = poisson_gaps(self._pattern.rate, f"{plan.seed}-{self._number}")
            await open_loop(self._target, turns, self.tally, gaps, window)

    async def tell(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TELL)
            say(calls=self.tally.calls)


async def main() -> None:
    plan, number, parts = pickle.load(sys.stdin.buffer)
    loop = asyncio.get_running_loop()
    async with opened(plan.address, [request.body for request in plan.requests], plan.timeout) as target:
        client = Client(plan, number, parts, target)
        learnt = await client.learn() if plan.learn else {}
        await client.warm_up()
        say(ready=sorted(learnt.items()))
        word = await loop.run_in_executor(None, sys.stdin.buffer.readline)
        if not word:  # another client failed
            return
        telling = asyncio.create_task(client.tell())
        await client.run(float(word))
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
    client.tally.read_times(plan.address.times)
    say(done=client.tally.to_json())
    sys.stdin.buffer.read()  # the generator reads this process's CPU seconds first


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RuntimeError as error:
        say(failed=str(error))
