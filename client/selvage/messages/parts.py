"""Where a large input is cut into parts, and a part into halves. Knows no messages and no calls."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """Rows `start` to `stop` of the whole input; for a matrix of scores, also columns `left` to `right`.

    `indivisible`: the rows have a meaning only together. `whole_columns`: so do the columns, and rows have one alone.
    """

    start: int
    stop: int
    left: int = 0
    right: int = 1
    indivisible: bool = False
    whole_columns: bool = False

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.right)

    @property
    def size(self) -> int:
        """Number of results that the part brings."""
        return (self.stop - self.start) * (self.right - self.left)

    def halves(self) -> "list[InputPart]":
        """Two parts that make up this one, cut through its longer side that may be cut; none where there is no such."""
        rows, columns = self.stop - self.start, 1 if self.whole_columns else self.right - self.left
        if max(rows, columns) < 2 or self.indivisible:
            return []
        if rows >= columns:
            middle = self.start + rows // 2
            return [replace(self, stop=middle), replace(self, start=middle)]
        middle = self.left + columns // 2
        return [replace(self, right=middle), replace(self, left=middle)]


def runs(sizes: Iterable[int], *, most: int, room: int) -> Iterator[tuple[int, int]]:
    """Cuts entries of these sizes into runs, and yields where each run starts and stops.

    A run has as many entries as possible, but at most `most`, and sizes that sum up to at most `room`. An entry over
    `room` is a run of its own. Without entries there is one empty run, so that the service gets to refuse it.
    """
    start = stop = used = 0
    for size in sizes:
        if stop > start and (stop - start == most or used + size > room):
            yield start, stop
            start, used = stop, 0
        stop, used = stop + 1, used + size
    yield start, stop
