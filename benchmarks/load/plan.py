"""What a run sends, where and in what pattern: all that a client process has to know."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from benchmarks.load.pattern import Closed, Open
from benchmarks.load.target import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request as bytes. `tokens`: what it costs, None where only the server knows. `kind`: whom it is timed with."""

    body: bytes
    tokens: int | None = None
    kind: str = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run: requests are sent in their order, again and again, by all processes together.

    `learn`: each request is first sent once, whose answer tells its tokens. `warmup`: seconds of the same load before
    anything counts; for a number of requests it comes before the first of them. `timeout`: seconds of each call.
    `times`: whether replies are kept and, once the run is over, read for the times that they tell.
    """

    address: Address
    requests: tuple[Prepared, ...]
    pattern: Closed | Open
    learn: bool = True
    warmup: float = 1.0
    timeout: float = 300.0
    seed: int = 1
    times: bool = False

    def turns(self, number: int, parts: int) -> Iterator[int]:
        """The requests of process `number` of `parts`, in order, endless or as many as it is to send."""
        endless = (position % len(self.requests) for position in count(number, parts))
        return islice(endless, self.pattern.part(number, parts).requests)
