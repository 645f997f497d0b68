"""A caller that streams numbers, for tests of what is answered together."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from frontend_service.api.streams.coalesced import CoalescedStream
from frontend_service.api.streams.two_way_stream import Replies
from shared.errors import InvalidInput, ResultTooLarge, SelvageError
from shared.server.admission import Admission, Bounds

ROOMY = Bounds()
BAD = 13


class Caller:
    """Sends numbers, as fast as it is read from; the reply to a number is the number.

    A group waits while `holds` has its first number. Numbers in `bad` spoil their group, by name; one of more than
    `largest` is too large. `errors` has the errors that the next groups meet, whatever they hold.
    """

    def __init__(self, *numbers: int, bounds: Bounds = ROOMY, size: int = 1) -> None:
        self.numbers, self.taken = numbers, 0
        self.groups, self.replies = list[list[int]](), list[int]()
        self.more, self.reads = asyncio.Event(), asyncio.Event()
        self.more.set()
        self.reads.set()
        self.holds: dict[int, asyncio.Event] = {}
        self.bad, self.largest = set[int](), 10_000
        self.errors = list[SelvageError]()
        self.under_way = self.most_under_way = 0
        self.turns = 1
        self.admission = Admission(bounds)
        self.size, self.at_end = size, list[Callable[[object], None]]()

    def options(self, number: int) -> Any:
        return number >= 1000

    async def __anext__(self) -> int:
        """Waits at the end while `more` is not set."""
        await asyncio.sleep(0)
        if self.taken == len(self.numbers):
            await self.more.wait()
            raise StopAsyncIteration
        self.taken += 1
        return self.numbers[self.taken - 1]

    async def answer(self, numbers: Sequence[int]) -> list[bytes]:
        self.groups.append(list(numbers))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            if numbers[0] in self.holds:
                await self.holds[numbers[0]].wait()
            if self.errors:
                raise self.errors.pop(0)
            if len(numbers) > self.largest:
                raise ResultTooLarge("too much")
            for place, number in enumerate(numbers):
                if number in self.bad:
                    raise InvalidInput(f"texts[{place}] is bad: {number}", field=f"texts[{place}]")
            return [bytes([number % 256, number // 256]) for number in numbers]
        finally:
            self.under_way -= 1

    async def write(self, reply: bytes) -> None:
        await self.reads.wait()
        self.replies.append(reply[0] + 256 * reply[1])

    async def run(self) -> None:
        with self.admission.stream() as stream:
            replies = Replies(self.write, self.at_end.append)
            await CoalescedStream(self.admission, stream, replies, self.options, self.answer).run(self)


async def settled() -> None:
    """Everybody who can go on has."""
    for _ in range(6000):
        await asyncio.sleep(0)
