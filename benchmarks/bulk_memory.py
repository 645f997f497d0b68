"""Memory of the bulk command and of both services over 0.2 GB and 2 GB of JSONL: the most that each process takes.

Long texts (20 kB on average), cut to 64 tokens, of a tiny random model: reading is most of the work.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree

from benchmarks import services
from benchmarks.benchmark import Options
from benchmarks.load.processor import peak_mebibytes
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, pair

WHOSE, RATE, COMPARED = "0.2 GB", "MB/s", ("command: peak MiB", "frontend: peak MiB", "worker: peak MiB")
PEERS: dict[str, tuple[str, ...]] = {}
SIZES = {"0.2 GB": 200_000_000, "2 GB": 2_000_000_000}


def written(path: Path, size: int) -> Path:
    """Lines with texts of 1 to 39 kB."""
    draw, left = random.Random(1), size
    words = [f"w{draw.randrange(200)}" for _ in range(12_000)]
    with path.open("w") as file:
        while left > 0:
            start = draw.randrange(2000)
            left -= file.write(json.dumps({"text": " ".join(words[start : start + draw.randrange(300, 9700)])}) + "\n")
    return path


def command(server: Server, source: Path, target: Path) -> Figures:
    """From its start to its end."""
    rmtree(target, ignore_errors=True)
    flags = ["--target", server.address, "--output", str(target), "--truncate", "--max-tokens", "64"]
    start, own = time.perf_counter(), 0.0
    words = [sys.executable, "-m", "selvage.bulk", str(source), *flags]
    with subprocess.Popen(words, env=os.environ | modules_of(ROOT), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(OSError, StopIteration):
                own = max(own, peak_mebibytes(process.pid))
            time.sleep(0.1)
    assert process.returncode == 0
    seconds = time.perf_counter() - start
    peaks = {f"{name}: peak MiB": peak_mebibytes(pid) for name, pid in server.pids.items()}
    return {"command: peak MiB": own, **peaks, "MB/s": source.stat().st_size / 1e6 / seconds, "s": seconds}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """The small input first: peaks of the services are those since their start."""
    vars(services)["MINILM"] = "random:tiny-bert"
    sources = {
        name: written(options.folder / f"{name}.jsonl", size // (100 if options.quick else 1))
        for name, size in SIZES.items()
    }
    with pair(ROOT, options.threads) as server:
        yield {
            "texts of 20 kB, cut to 64 tokens": {
                name: partial(command, server, source, options.folder / "vectors") for name, source in sources.items()
            }
        }
