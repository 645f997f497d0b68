"""When requests are sent. Knows nothing of what they are or where they go."""

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Requests for `seconds`, or `requests` of them: exactly one is set. Raises ValueError."""

    seconds: float | None = None
    requests: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.requests is None):
            raise ValueError("a load lasts for seconds or for a number of requests: give one of them")
        if (self.seconds is not None and self.seconds <= 0) or (self.requests is not None and self.requests <= 0):
            raise ValueError("seconds and requests are above zero")

    @property
    def length(self) -> float:
        """Seconds of the window in which requests count."""
        return self.seconds or inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Pattern):
    """`clients` that each send their next request when the last is answered.

    With as many clients as requests, all are sent at once.
    """

    clients: int

    def __post_init__(self) -> None:
        Pattern.__post_init__(self)
        if self.clients < 1:
            raise ValueError("a closed loop needs a client")

    def part(self, number: int, parts: int) -> "Closed":
        """What process `number` of `parts` does."""
        mine = len(self.lanes(number, parts))
        return replace(self, clients=mine, requests=_part(self.requests, number, parts))

    def lanes(self, number: int, parts: int) -> range:
        """The clients of process `number`, by their number among all."""
        return range(number, self.clients, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Pattern):
    """Poisson arrivals at `rate` a second, whatever the answers do."""

    rate: float

    def __post_init__(self) -> None:
        Pattern.__post_init__(self)
        if self.rate <= 0:
            raise ValueError("an open loop needs a rate above zero")

    def part(self, number: int, parts: int) -> "Open":
        """What process `number` of `parts` does: independent Poisson arrivals add up to Poisson arrivals."""
        return replace(self, rate=self.rate / parts, requests=_part(self.requests, number, parts))


def _part(requests: int | None, number: int, parts: int) -> int | None:
    return None if requests is None else len(range(number, requests, parts))
