"""When the servers of a row start: each for its turn in every round, alone on the cores, or all before the first round.

Servers that start in turns meet a machine whose own speed changes between their turns by several per cent. Servers that
are loaded together are asked right after each other, case by case, but want memory for all of them at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks.published.asking import Rows
from benchmarks.published.row import OURS, Row
from benchmarks.published.servers import Launch, started
from benchmarks.published.turns import Seen, introduce, tell, turn, without_server

Measured = tuple[str, str, dict[str, float]]
"""A case, a side, and the side's figures in it."""
Round = Callable[[int], Iterator[Measured]]
"""Measures all sides in all cases once. It takes the round's number, from 0: every other round goes backwards."""


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


@contextmanager
def alone(trial: Trial) -> Iterator[Round]:
    """Starts each side for its turn, and ends it before the next one starts."""
    yield lambda number: _one_after_the_other(trial, number)


def _one_after_the_other(trial: Trial, number: int) -> Iterator[Measured]:
    for side in trial.order(number):
        try:
            yield from _started_for_its_turn(trial, side, number)
        except SystemExit as error:
            trial.leave_out(side, error)


def _started_for_its_turn(trial: Trial, side: str, number: int) -> Iterator[Measured]:
    row, launch = trial.row, trial.sides[side]
    online: dict[str, dict[str, float]] = {}
    again = side in trial.seen.cold
    with started(f"{row.name}, {side}", launch) as server:
        introduce(row, side, server, trial.seen, trial.model)
        for of in row.cases:
            figures = turn(row, of, side, server, trial.seconds, trial.scale, launch.priority, number, trial.seen)
            if figures:
                online[of.name] = figures | ({"start to ready, s": server.seconds} if again else {})
    _add_engine(trial, side, online)
    yield from ((name, side, figures) for name, figures in online.items())


def _add_engine(trial: Trial, side: str, online: dict[str, dict[str, float]]) -> None:
    """Adds what the first case takes without a server to its figures, where the row asks for that."""
    launch, first = trial.sides[side], online.get(trial.row.cases[0].name)
    if trial.row.offline and launch.offline and first is not None:
        first |= without_server(trial.row, launch, trial.seconds, first)


@contextmanager
def together(trial: Trial) -> Iterator[Round]:
    """Starts all sides and leaves them running; in each round they are asked one after the other, case by case."""
    row = trial.row
    with ExitStack() as cleanup:
        servers = {}
        for side, launch in list(trial.sides.items()):
            try:
                servers[side] = cleanup.enter_context(started(f"{row.name}, {side}", launch))
            except SystemExit as error:
                trial.leave_out(side, error)
            else:
                introduce(row, side, servers[side], trial.seen, trial.model)

        def asked_in_turns(number: int) -> Iterator[Measured]:
            online: dict[str, dict[str, dict[str, float]]] = {side: {} for side in trial.sides}
            for of in row.cases:
                for side in trial.order(number):
                    how = (trial.seconds, trial.scale, trial.sides[side].priority, number, trial.seen)
                    figures = turn(row, of, side, servers[side], *how)
                    if figures:
                        online[side][of.name] = figures
            for side, by_case in online.items():
                _add_engine(trial, side, by_case)
                yield from ((name, side, figures) for name, figures in by_case.items())

        yield asked_in_turns
