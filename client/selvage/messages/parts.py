"""Large inputs in parts: where to cut, and a part in halves. Knows no messages and no calls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """Rows `start` to `stop` of the whole input; of a matrix of scores, also columns `left` to `right`."""

    start: int
    stop: int
    left: int = 0
    right: int = 1

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.right)

    @property
    def size(self) -> int:
        """Results that it brings."""
        return (self.stop - self.start) * (self.right - self.left)

    def halves(self) -> "list[InputPart]":
        """Two parts that make up this one, cut through its longer side; empty where there is but one result."""
        rows, columns = self.stop - self.start, self.right - self.left
        if max(rows, columns) < 2:
            return []
        if rows >= columns:
            middle = self.start + rows // 2
            return [replace(self, stop=middle), replace(self, start=middle)]
        middle = self.left + columns // 2
        return [replace(self, right=middle), replace(self, left=middle)]


def runs(sizes: Iterable[int], *, most: int, room: int) -> Iterator[tuple[int, int]]:
    """Where each part starts and stops: the most entries in a row that are `most` at most and `room` together.

    An entry over `room` is a part of its own. No entries make one empty part, for the service to refuse.
    """
    start = stop = used = 0
    for size in sizes:
        if stop > start and (stop - start == most or used + size > room):
            yield start, stop
            start, used = stop, 0
        stop, used = stop + 1, used + size
    yield start, stop
