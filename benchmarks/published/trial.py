"""A row that is measured: its sides, how they are asked, and what their first starts show."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.published.asking import Rows
from benchmarks.published.row import OURS, Row
from benchmarks.published.servers import Launch


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the first start of each side shows, by side: seconds to ready, answers, their cosines to the model's own
    code, and reasons of sides that did not start."""

    cold: dict[str, float] = field(default_factory=dict)
    answers: dict[str, Sequence[Rows]] = field(default_factory=dict)
    cosines: dict[str, dict[str, float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Trial:
    """A row that is measured on its `sides`, without those that turned out not to start.

    `seconds`: of each case. `scale`: of models and requests. `model`: what the model's own code answers. `seen`: see
    `Seen`.
    """

    row: Row
    sides: dict[str, Launch]
    seconds: float
    scale: str
    model: Sequence[Rows]
    seen: Seen = field(default_factory=Seen)

    def order(self, number: int) -> list[str]:
        """Lists the sides in the order of their turns in the round of this number."""
        return list(self.sides)[:: -1 if number % 2 else 1]

    def leave_out(self, side: str, error: SystemExit) -> None:
        """Leaves out a peer that did not start, and keeps its reason. Raises the error where the side started before,
        where it is ours, and where it is a signal's."""
        if side in self.seen.cold or not isinstance(error.code, str) or side.startswith(OURS):
            raise error
        tell(f"{self.row.name}, {side}: {error.code}")
        self.seen.absent[side] = error.code.partition("\n")[0].partition(" (/")[0]  # no path of this machine
        del self.sides[side]


def tell(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)
