"""A peer's end of `process.py`: runs what it is asked for, times that alone, answers in lines. numpy only."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.processor import CpuSeconds

Make = Callable[..., Callable[[], npt.ArrayLike]]
"""Takes the arguments that were asked with, and makes the work that is timed."""


def answer(sides: Mapping[str, Make]) -> None:
    """Until standard input ends. The first line tells that all is loaded, so nobody measures anything meanwhile.

    Whatever a library prints goes to standard error.
    """
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        work = sides[asked["side"]](**asked["arguments"])
        answers.write(json.dumps(_timed(work, asked["turn"], asked["file"])) + "\n")


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
    """CPU seconds of processes that this one has started by multiprocessing, and that run."""
    return sum(CpuSeconds.of(each.pid).whole for each in multiprocessing.active_children() if each.pid)


def write_texts(texts: Sequence[npt.NDArray[np.int32]], file: Path) -> str:
    """Token ids by text, for `texts` at the other end; the file's name."""
    np.savez(file, ids=np.concatenate(texts), lengths=[len(each) for each in texts])
    return str(file)


def texts(file: str) -> list[npt.NDArray[np.int32]]:
    """What `write_texts` wrote."""
    found = np.load(file)
    return np.split(found["ids"], np.cumsum(found["lengths"])[:-1])


def padded(all_texts: Sequence[npt.NDArray[np.int32]], size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Batches of so many texts, longest first: their numbers [B], ids and mask [B, L] int64."""
    order = np.argsort([-len(each) for each in all_texts], kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        ids = np.zeros((len(chosen), len(all_texts[chosen[0]])), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, each in enumerate(chosen):
            ids[row, : len(all_texts[each])], mask[row, : len(all_texts[each])] = all_texts[each], 1
        yield chosen, ids, mask
