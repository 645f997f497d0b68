"""A limit that callers share: none may hold more of it than is left for all others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Shares:
    """Places, `most` in all, and how many of them each caller holds.

    A caller that is alone gets half of them, a second one half of the rest, and so on: whoever comes finds a place.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._held: Counter[str] = Counter()

    def held(self, caller: str) -> int:
        """The number of places that a caller holds."""
        return self._held[caller]

    @property
    def left(self) -> int:
        """The number of places that nobody holds."""
        return self.most - self.total

    def has_share(self, caller: str) -> bool:
        """Tells whether a caller holds all that it may hold, though places are left."""
        return self._held[caller] >= self.left > 0

    @contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        """Holds a place for the duration of the block."""
        self._held[caller] += 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]
