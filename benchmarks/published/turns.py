"""A side's turn, once its server is ready: its answers are compared, and the clients of a case run."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

import numpy as np

from benchmarks.load.target import texts_of
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.published.comparison import answers, compared
from benchmarks.published.driver import COMPARED
from benchmarks.published.row import Case
from benchmarks.published.servers import OFFLINE, ReadyServer
from benchmarks.published.trial import Trial, tell

START = '{"seconds":'
"""The beginning of the line that `offline.py` prints."""
PAUSE = 1.0
"""Seconds in which a server that is ready comes to rest."""


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
