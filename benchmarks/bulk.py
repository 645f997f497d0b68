"""File to file: 3,000 lognormal texts, JSONL -> Parquet, by `python -m selvage.bulk` and by sentence-transformers.

The command asks both services; `encode` runs in one process with all threads, and in its own multi-process pool with a
process a thread. Models are loaded before; the command's start counts. Vectors of all files are compared. The engine
alone gets token ids made before, as one job, and writes nothing: the most that the command could reach.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.benchmark import Figures, Options, Turn
from benchmarks.engine import peer_of
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, modules_of, program_of
from benchmarks.servers import Server, pair
from benchmarks.services import ENGINE
from benchmarks.workloads import MINILM, lognormal, minilm_folder, text, token_ids

OUR_SIDE, RATE, COMPARED = "the command", "texts/s", ("texts/s", "CPU ms/text")
PEERS = {"sentence-transformers": ("sentence-transformers", "torch", "pyarrow")}
TEXTS, QUICK, MEAN = 3000, 100, 32.0
"""Number of texts, and of those with --quick; their mean length in tokens, of 512 at most."""
TOLERANCE = 1e-5
"""Largest difference allowed in a number of a unit vector."""


def command(server: Server, *, texts: int, source: str, target: str) -> Figures:
    """Runs the command, and measures it with the CPU that the services spent on it."""
    before = {name: CpuSeconds.of(pids) for name, pids in server.pids.items()}
    start, used_before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    flags = ["--target", server.address, "--id-column", "id", "--output", target, "--restart", "--truncate"]
    program = [sys.executable, "-m", "selvage.bulk", source, *flags]
    subprocess.run(program, env=os.environ | modules_of(ROOT), stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    spent = {name: (CpuSeconds.of(pids) - before[name]).whole for name, pids in server.pids.items()}
    spent["command"] = after.ru_utime + after.ru_stime - used_before.ru_utime - used_before.ru_stime
    parts = {f"{name}: CPU ms/text": cpu / texts * 1e3 for name, cpu in spent.items()}
    return {"texts/s": texts / seconds, "CPU ms/text": sum(parts.values()), **parts}


def run_peer(peer: Peer, work: str, *, texts: int, **arguments: Any) -> Figures:
    """Measures one run of a peer."""
    times = peer.run(work, **arguments)
    return {"texts/s": texts / times["seconds"], "CPU ms/text": times["cpu_seconds"] / texts * 1e3}


def compared(side: Callable[..., Figures], target: str, rows: list[Any]) -> Figures:
    """Measures a side, and compares its file: ids in order, vectors equal to `rows`, which the first file fills.

    Raises AssertionError.
    """
    figures, table = side(target=target), pq.read_table(target, columns=["id", "dense"])
    rows += [] if rows else [np.stack(table["dense"].to_numpy())]
    difference = np.abs(np.stack(table["dense"].to_numpy()) - rows[0]).max()
    assert table["id"].to_pylist() == [str(number) for number in range(len(rows[0]))], f"{target}: other rows"
    assert difference < TOLERANCE, f"{target} differs by {difference}"
    return figures


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts the services and peers; yields their turns."""
    threads, script = options.threads, "benchmarks.peers.sentence_transformers_peer"
    encode: list[Any] = [program_of("sentence-transformers"), "-m", script, minilm_folder(), "float32"]
    lengths, draw = lognormal(QUICK if options.quick else TEXTS, mean=MEAN), random.Random(1)
    source, rows, count = options.folder / "texts.jsonl", list[Any](), len(lengths)
    texts = [{"id": str(number), "text": text(MINILM, length, draw)} for number, length in enumerate(lengths)]
    source.write_text("\n".join(map(json.dumps, texts)))
    with ExitStack() as cleanup:
        loading = (Peer(encode, threads=threads), Peer([*encode, str(threads)], threads=1), peer_of(threads))
        plain, pool, engine = (cleanup.enter_context(peer) for peer in loading)
        sides: dict[str, Callable[..., Figures]] = {
            OUR_SIDE: partial(command, cleanup.enter_context(pair(threads))),
            f"encode, {threads} threads": partial(run_peer, plain, "file"),
            f"encode, pool of {threads} x 1 thread": partial(run_peer, pool, "file"),
        }
        timed: dict[str, Turn] = {
            side: partial(compared, partial(run, texts=count, source=str(source)), str(options.folder / side), rows)
            for side, run in sides.items()
        }
        file = write_texts(token_ids(lengths), options.folder / "texts.npz")
        timed[ENGINE] = partial(run_peer, engine, "embed", texts=count, file=file)
        yield {f"{count:,} texts, {sum(lengths):,} tokens": timed}
