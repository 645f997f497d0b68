"""The peer's end of `process.py`: reads requests in lines, runs and times the work, writes the times. numpy only."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.processor import CpuSeconds

Make = Callable[..., Callable[[], npt.ArrayLike]]
"""Makes the work that is timed from a request's arguments."""


class Refused(Exception):
    """A peer cannot do here what it was started for; its text is the reason, as the result will tell it."""


def answer(load: Callable[[], Mapping[str, Make]]) -> None:
    """Loads the sides and answers requests until standard input ends.

    The first line written says that everything is loaded, or why this side is `Refused` here: until then nothing is
    measured. What libraries print goes to standard error.
    """
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        sides = load()
    except Refused as reason:
        answers.write(json.dumps({"refused": str(reason)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        work = sides[request["side"]](**request["arguments"])
        answers.write(json.dumps(_timed(work, request["turn"], request["file"])) + "\n")


def _timed(work: Callable[[], npt.ArrayLike], turn: float, file: str) -> dict[str, float]:
    runs: list[float] = []
    before = time.process_time() + children_seconds()
    while not runs or sum(runs) < turn:
        start = time.perf_counter()
        outcome = work()
        runs.append(time.perf_counter() - start)
    spent = time.process_time() + children_seconds() - before
    if file:
        np.save(file, np.asarray(outcome))
    count = len(runs)
    return {"seconds": float(np.median(runs)), "fastest": min(runs), "cpu_seconds": spent / count, "runs": count}


def children_seconds() -> float:
    """Sums the CPU seconds of the running processes that this one started by multiprocessing."""
    return sum(CpuSeconds.of(process.pid).whole for process in multiprocessing.active_children() if process.pid)


def write_texts(texts: Sequence[npt.NDArray[np.int32]], file: Path) -> str:
    """Writes token ids by text for `texts` at the other end, and gives the file's name."""
    np.savez(file, ids=np.concatenate(texts), lengths=[len(text) for text in texts])
    return str(file)


def texts(file: str) -> list[npt.NDArray[np.int32]]:
    """Reads the texts that `write_texts` wrote."""
    arrays = np.load(file)
    return np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
