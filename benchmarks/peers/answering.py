"""The peer's end of `process.py`: reads requests in lines, runs and times the work, writes the times. numpy only.

And texts in padded batches, longest first, as sentence-transformers makes them: for peers that compute no ragged ones.
Batches run one after the other, or in streams: as many at a time, each with its share of the threads.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load.processor import CpuSeconds

Make = Callable[..., Callable[[], npt.ArrayLike]]
"""Makes the work that is timed from a request's arguments."""
Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Infer = Callable[[Any, Any], Rows]
"""Computes unit rows [B, D] of a batch from its ids and mask [B, L] int64."""
NO_BFLOAT16 = "this processor makes no products in bfloat16; emulated ones take ten times as long"


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
    return CpuSeconds.of(filter(None, (process.pid for process in multiprocessing.active_children()))).whole


def write_texts(texts: Sequence[Ids], file: Path) -> str:
    """Writes token ids by text for `texts` at the other end, and gives the file's name."""
    np.savez(file, ids=np.concatenate(texts), lengths=[len(text) for text in texts])
    return str(file)


def texts(file: str) -> list[Ids]:
    """Reads the texts that `write_texts` wrote."""
    arrays = np.load(file)
    return np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])


def padded(all_texts: Sequence[Ids], size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yields batches of `size` texts, longest first: their indices [B], and ids and mask [B, L] int64."""
    order = np.argsort([-len(text) for text in all_texts], kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        ids = np.zeros((len(chosen), len(all_texts[chosen[0]])), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(all_texts[number] for number in chosen):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        yield chosen, ids, mask


def embed(infer: Infer, all_texts: Sequence[Ids], size: int, streams: int = 1) -> Rows:
    """Embeds texts in batches of `size`, `streams` of them at a time: rows [S, D] in the order of the texts."""

    def rows_of(batch: tuple[Any, Any, Any]) -> tuple[Any, Rows]:
        chosen, ids, mask = batch
        return chosen, infer(ids, mask)

    batches = padded(all_texts, size)
    done = map(rows_of, batches) if streams == 1 else _pool(streams).map(rows_of, batches)
    chosen, rows = zip(*done, strict=True)
    in_order = np.empty((len(all_texts), rows[0].shape[1]), dtype=np.float32)
    in_order[np.concatenate(chosen)] = np.concatenate(rows)
    return in_order


@cache
def _pool(streams: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(streams)
