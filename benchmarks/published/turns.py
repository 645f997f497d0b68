"""How the sides of a row are asked, what their first starts show, and when their servers start.

Each starts for its turn in every round, alone on the cores, or all before the first round. Servers that start in turns
meet a machine whose own speed changes between their turns by several per cent. Servers that are loaded together are
asked right after each other, case by case, but want memory for all of them at once.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks.load.target import texts_of
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.published.asking import Rows
from benchmarks.published.comparison import answers, compared
from benchmarks.published.driver import COMPARED
from benchmarks.published.row import OURS, Case, Row
from benchmarks.published.servers import OFFLINE, Launch, ReadyServer, started

START = '{"seconds":'
"""The beginning of the line that `offline.py` prints."""
PAUSE = 1.0
"""Seconds in which a server that is ready comes to rest."""
Measured = tuple[str, str, dict[str, float]]
"""A case, a side, and the side's figures in it."""
Round = Callable[[int], Iterator[Measured]]
"""Measures all sides in all cases once. It takes the round's number, from 0: every other round goes backwards."""


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


def introduce(trial: Trial, side: str, server: ReadyServer) -> None:
    """Compares the answers of a side's first start with the model's own, before anything is timed."""
    seen = trial.seen
    tell(f"  {side}: ready after {server.seconds:.1f} s")
    if side not in seen.cold:
        seen.answers[side] = answers(trial.row, server.url)
        seen.cosines[side] = compared(side, seen.answers[side], trial.model)
        seen.cold[side] = round(server.seconds, 1)
        tell(f"  {side}: cosines to the model {seen.cosines[side]}")
    time.sleep(PAUSE)


def turn(trial: Trial, of: Case, side: str, server: ReadyServer, number: int) -> dict[str, float]:
    """Runs the clients of a case in the round of this `number` against a server that is ready; gives the figures, none
    where they fail: then the case is absent, with its reason."""
    try:
        figures = clients(trial, of, side, server, number)
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise  # a signal's
        trial.seen.absent[f"{side}, {of.name}"] = error.code
        tell(error.code)
        return {}
    line = ", ".join(f"{name} {value:.4g}" for name, value in list(figures.items())[:6])
    tell(f"  {of.name}, {side}: {line}")
    return figures | _memory(server, figures)


def without_server(trial: Trial, side: str, online: Mapping[str, float]) -> dict[str, float]:
    """Measures the first case's texts one at a time in the process of the model; gives how much a server adds.

    Empty, with a line on standard error, where that process fails.
    """
    row, launch, workload = trial.row, trial.sides[side], trial.row.cases[0].stream.workload
    wanted = {"texts": [text for texts in texts_of(workload, COMPARED) for text in texts], "seconds": trial.seconds}
    request = json.dumps({**launch.engine, **wanted})
    environment = {**os.environ, **OFFLINE, **launch.environment}
    with tempfile.TemporaryFile("w+") as log:
        done = subprocess.run(
            launch.offline, cwd=ROOT, env=environment, input=request, stdout=subprocess.PIPE, stderr=log, text=True
        )
        if done.returncode:
            log.seek(0)
            tell(f"{row.name}: the engine without a server ended with {done.returncode}\n{log.read()[-2000:]}")
            return {}
    line = next(line for line in done.stdout.splitlines() if line.startswith(START))  # vLLM prints beside it
    milliseconds = float(np.median(json.loads(line)["seconds"])) * 1e3
    tell(f"  without a server: p50 {milliseconds:.4g} ms")
    return {"p50 ms without a server": milliseconds, "p50 ms that a server adds": online["p50 ms"] - milliseconds}


def clients(trial: Trial, of: Case, side: str, server: ReadyServer, number: int) -> dict[str, float]:
    """Runs the clients of a case in a process of their own and gives their figures. Exits where it fails."""
    row, priority = trial.row, trial.sides[side].priority
    wanted = {"row": row.name, "case": of.name, "url": server.url, "seconds": trial.seconds, "scale": trial.scale}
    wanted |= {"requests": of.stream.requests, "priority": priority, "round": number, "watch": server.pids}
    command = [sys.executable, "-m", "benchmarks.published.driver", json.dumps(wanted)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | modules_of(ROOT), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{row.name}, {of.name}: the clients ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _memory(server: ReadyServer, figures: Mapping[str, float]) -> dict[str, float]:
    """Tells each process's memory at rest, and sums what all processes of the server take."""
    whole = {
        "server: CPU ms/request": sum(figures[f"{name}: CPU ms/request"] for name in server.pids),
        "server: MiB at rest": sum(server.rest.values()),
        "server: peak MiB": sum(figures[f"{name}: peak MiB"] for name in server.pids),
    }
    return {f"{name}: MiB at rest": value for name, value in server.rest.items()} | whole


def tell(line: str) -> None:
    """Prints a line on standard error."""
    print(line, file=sys.stderr, flush=True)
