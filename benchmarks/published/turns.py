"""A side's turn, once its server is ready: its answers are compared, and the clients of a case run."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.load.target import texts_of
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.published.asking import Rows
from benchmarks.published.comparison import answers, compared
from benchmarks.published.driver import COMPARED
from benchmarks.published.row import Case, Row
from benchmarks.published.servers import OFFLINE, Launch, ReadyServer

START = '{"seconds":'
"""The beginning of the line that `offline.py` prints."""
PAUSE = 1.0
"""Seconds in which a server that is ready comes to rest."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the first start of each side shows, by side: seconds to ready, answers, their cosines to the model's own
    code, and reasons of sides that did not start."""

    cold: dict[str, float] = field(default_factory=dict)
    answers: dict[str, Sequence[Rows]] = field(default_factory=dict)
    cosines: dict[str, dict[str, float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def introduce(row: Row, side: str, server: ReadyServer, seen: Seen, model: Sequence[Rows]) -> None:
    """Compares the answers of a side's first start with the `model`'s own, before anything is timed."""
    tell(f"  {side}: ready after {server.seconds:.1f} s")
    if side not in seen.cold:
        seen.answers[side] = answers(row, server.url)
        seen.cosines[side] = compared(side, seen.answers[side], model)
        seen.cold[side] = round(server.seconds, 1)
        tell(f"  {side}: cosines to the model {seen.cosines[side]}")
    time.sleep(PAUSE)


def turn(
    row: Row,
    of: Case,
    side: str,
    server: ReadyServer,
    seconds: float,
    scale: str,
    priority: str,
    number: int,
    seen: Seen,
) -> dict[str, float]:
    """Runs the clients of a case in the round of this `number` against a server that is ready; gives the figures, none
    where they fail: then the case is absent, with its reason."""
    try:
        figures = clients(row, of, server, seconds, scale, priority, number)
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise  # a signal's
        seen.absent[f"{side}, {of.name}"] = error.code
        tell(error.code)
        return {}
    line = ", ".join(f"{name} {value:.4g}" for name, value in list(figures.items())[:6])
    tell(f"  {of.name}, {side}: {line}")
    return figures | _memory(server, figures)


def without_server(row: Row, launch: Launch, seconds: float, online: Mapping[str, float]) -> dict[str, float]:
    """Measures the first case's texts one at a time in the process of the model; gives how much a server adds.

    Empty, with a line on standard error, where that process fails.
    """
    workload = row.cases[0].stream.workload
    wanted = {"texts": [text for texts in texts_of(workload, COMPARED) for text in texts], "seconds": seconds}
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


def clients(
    row: Row, of: Case, server: ReadyServer, seconds: float, scale: str, priority: str = "", number: int = 0
) -> dict[str, float]:
    """Runs the clients of a case in a process of their own and gives their figures. Exits where it fails."""
    wanted = {"row": row.name, "case": of.name, "url": server.url, "seconds": seconds, "scale": scale}
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
