"""When the servers of a row start: each for its turn in every round, alone on the cores, or all before the first round.

Servers that start in turns meet a machine whose own speed changes between their turns by several per cent. Servers that
are loaded together are asked right after each other, case by case, but want memory for all of them at once.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.published.servers import started
from benchmarks.published.trial import Trial
from benchmarks.published.turns import introduce, turn, without_server

Measured = tuple[str, str, dict[str, float]]
"""A case, a side, and the side's figures in it."""
Round = Callable[[int], Iterator[Measured]]
"""Measures all sides in all cases once. It takes the round's number, from 0: every other round goes backwards."""


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
    online: dict[str, dict[str, float]] = {}
    again = side in trial.seen.cold
    with started(f"{trial.row.name}, {side}", trial.sides[side]) as server:
        introduce(trial, side, server)
        for of in trial.row.cases:
            figures = turn(trial, of, side, server, number)
            if figures:
                online[of.name] = figures | ({"start to ready, s": server.seconds} if again else {})
    _add_engine(trial, side, online)
    yield from ((name, side, figures) for name, figures in online.items())


def _add_engine(trial: Trial, side: str, online: dict[str, dict[str, float]]) -> None:
    """Adds what the first case takes without a server to its figures, where the row asks for that."""
    launch, first = trial.sides[side], online.get(trial.row.cases[0].name)
    if trial.row.offline and launch.offline and first is not None:
        first |= without_server(trial, side, first)


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
                introduce(trial, side, servers[side])

        def asked_in_turns(number: int) -> Iterator[Measured]:
            online: dict[str, dict[str, dict[str, float]]] = {side: {} for side in trial.sides}
            for of in row.cases:
                for side in trial.order(number):
                    figures = turn(trial, of, side, servers[side], number)
                    if figures:
                        online[side][of.name] = figures
            for side, by_case in online.items():
                _add_engine(trial, side, by_case)
                yield from ((name, side, figures) for name, figures in by_case.items())

        yield asked_in_turns
