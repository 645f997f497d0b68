"""A document of 4,000 tokens in 32 chunks: late chunking beside one Embed of the document and Embeds of its chunks.

All sides are calls of one `selvage.Engine` with a random ModernBERT of the shape of granite-embedding-small-english-r2,
tokenising included. Before anything is timed, the rows of the chunks are compared with the row of the document: without
unit length, the mean of the ones by their tokens is the other.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.benchmark import Options
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import SYNTHETIC
from selvage import Engine

OUR_SIDE, RATE, COMPARED = "late chunking", "documents/s", ("documents/s",)
PEERS: Mapping[str, tuple[str, ...]] = {}
MODEL, TOKENS, CHUNKS = "random:modernbert-small", 4000, 32
QUICK = 500
"""Tokens of the document with `--quick`."""
WINDOW, OVERLAP = 1024, 128
"""Most tokens of a window, and those that two windows share."""
TOLERANCE = 1e-4
"""Largest difference of the rows that are compared, relative to their largest number."""


def turn(call: Callable[[], Any]) -> Figures:
    """Times a call."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return {"documents/s": 1 / seconds, "ms": seconds * 1e3}


def one_by_one(engine: Engine, chunks: list[str]) -> None:
    """Embeds the chunks, a call each."""
    for chunk in chunks:
        engine.embed(chunk)


def check(engine: Engine, chunks: list[str]) -> None:
    """Exits where the rows of the chunks do not make up that of the document."""
    rows = engine.embed(chunks, late_chunking=True, normalize=False, output=["dense"])
    whole = engine.embed("".join(chunks), normalize=False)
    assert rows.dense is not None
    joined = np.average(rows.dense.astype(np.float64), axis=0, weights=rows.token_counts)
    error = float(np.abs(joined - whole).max() / np.abs(whole).max())
    if error > TOLERANCE:
        sys.exit(f"the chunks' rows differ from the document's by {error:.2g}")


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts an engine and compares its rows; yields the turns."""
    from benchmarks.ours import written  # it needs torch

    tokens = QUICK if options.quick else TOKENS
    words = random.Random(1).choices(SYNTHETIC, k=tokens - 2)
    ends = np.linspace(0, len(words), CHUNKS + 1).round().astype(int).tolist()
    chunks = ["".join(f"{word} " for word in words[start:end]) for start, end in pairwise(ends)]
    document, window = "".join(chunks), min(WINDOW, tokens // 4)
    with written(MODEL) as model, Engine(model, max_tokens=TOKENS, threads=options.threads) as engine:
        check(engine, chunks)
        late = partial(engine.embed, chunks, late_chunking=True)
        sides: dict[str, Callable[[], Any]] = {
            OUR_SIDE: late,
            f"late chunking, windows of {window}": partial(
                late, max_tokens=window, window_overlap=window * OVERLAP // WINDOW
            ),
            "one Embed of the document": partial(engine.embed, document),
            f"one Embed of {CHUNKS} chunks": partial(engine.embed, chunks),
            f"{CHUNKS} Embeds of a chunk": partial(one_by_one, engine, chunks),
        }
        yield {f"{tokens} tokens": {name: partial(turn, call) for name, call in sides.items()}}
