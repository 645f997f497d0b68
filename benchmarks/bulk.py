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

from benchmarks.benchmark import Options
from benchmarks.engine import peer_of
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.answering import write_texts
from benchmarks.peers.process import Peer, modules_of, python_of
from benchmarks.rounds import Figures, Turn
from benchmarks.services import ENGINE, Server, pair
from benchmarks.workloads import MINILM, lognormal, minilm_folder, text, token_ids

OUR_SIDE, RATE, COMPARED = "the command", "texts/s", ("texts/s", "CPU ms/text")
PEERS = {"sentence-transformers": ("sentence-transformers", "torch", "pyarrow")}
TEXTS, QUICK, MEAN = 3000, 100, 32.0
"""Number of texts, number with --quick, and mean length in tokens (the longest has 512)."""
TOLERANCE = 1e-5
"""Largest difference allowed in a number of a unit vector."""


def command(server: Server, texts: int, *, source: str, target: str) -> Figures:
    """Runs the command, and measures it with the CPU that the services spent on it."""
    before = {name: CpuSeconds.of(pid) for name, pid in server.pids.items()}
    start, used_before = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    flags = ["--target", server.address, "--id-column", "id", "--output", target, "--restart"]
    program = [sys.executable, "-m", "selvage.bulk", source, *flags]
    subprocess.run(program, env=os.environ | modules_of(ROOT), stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    spent = {name: (CpuSeconds.of(pid) - before[name]).whole for name, pid in server.pids.items()}
    spent["command"] = after.ru_utime + after.ru_stime - used_before.ru_utime - used_before.ru_stime
    parts = {f"{name}: CPU ms/text": cpu / texts * 1e3 for name, cpu in spent.items()}
    return {"texts/s": texts / seconds, "CPU ms/text": sum(parts.values()), **parts}


def run_peer(peer: Peer, texts: int, work: str, **arguments: Any) -> Figures:
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
    """Starts the services and peers of the one case."""
    lengths, draw, threads = lognormal(QUICK if options.quick else TEXTS, mean=MEAN), random.Random(1), options.threads
    lines = [json.dumps({"id": str(at), "text": text(MINILM, length, draw)}) for at, length in enumerate(lengths)]
    count, source, ids = len(lines), options.folder / "texts.jsonl", options.folder / "texts.npz"
    source.write_text("\n".join(lines))
    venv, script = "sentence-transformers", "benchmarks.peers.sentence_transformers_peer"
    encode: list[Any] = [python_of(venv), "-m", script, minilm_folder(), "float32"]
    with ExitStack() as cleanup:
        loading = (Peer(encode, threads=threads), Peer([*encode, str(threads)], threads=1), peer_of(threads))
        plain, pool, engine = (cleanup.enter_context(peer) for peer in loading)
        sides: dict[str, Callable[..., Figures]] = {
            OUR_SIDE: partial(command, cleanup.enter_context(pair(ROOT, threads)), count),
            f"encode, {threads} threads": partial(run_peer, plain, count, "file"),
            f"encode, pool of {threads} x 1 thread": partial(run_peer, pool, count, "file"),
        }
        rows, arguments, folder = list[Any](), {"source": str(source)}, options.folder
        timed: dict[str, Turn] = {
            name: partial(compared, partial(side, **arguments), str(folder / name), rows)
            for name, side in sides.items()
        }
        timed[ENGINE] = partial(run_peer, engine, count, "embed", file=write_texts(token_ids(lengths), ids))
        yield {f"{count:,} texts, {sum(lengths):,} tokens": timed}
