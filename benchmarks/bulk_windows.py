"""What each choice of the bulk command brings: messages under way, texts of a message, windows, sorting, no services.

2,000 lognormal texts of MiniLM, JSONL -> Parquet, through both services. Each side changes one flag of the defaults;
the last one runs the model in the own process of the command. Vectors of all files are compared.
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

from benchmarks.benchmark import Options
from benchmarks.bulk import MEAN, QUICK, compared
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, pair
from benchmarks.workloads import MINILM, lognormal, text

WHOSE, RATE, COMPARED = "defaults: 32 messages of 64 texts, windows of 4,096", "texts/s", ("texts/s", "CPU ms/text")
PEERS: dict[str, tuple[str, ...]] = {}
TEXTS = 2000
SORTED = "from selvage.bulk.__main__ import main; import sys; raise SystemExit(main(sys.argv[1:]))"
UNSORTED = f"from selvage.bulk import windows; windows.sorted = lambda places, **_: list(places); {SORTED}"
SIDES = {
    WHOSE: (SORTED, ()),
    "1 message under way": (SORTED, ("--in-flight", "1")),
    "4 messages": (SORTED, ("--in-flight", "4")),
    "8 messages": (SORTED, ("--in-flight", "8")),
    "128 messages": (SORTED, ("--in-flight", "128")),
    "messages of 16 texts": (SORTED, ("--batch-size", "16")),
    "messages of 256 texts": (SORTED, ("--batch-size", "256")),
    "windows of 512 texts": (SORTED, ("--rows-per-shard", "512")),
    "in the order of the input": (UNSORTED, ()),
    "the model in the command's process": (SORTED, ("--engine", "minilm", "--engine-option", "max_tokens=512")),
}


def command(server: Server, texts: int, program: str, flags: tuple[str, ...], *, source: str, target: str) -> Figures:
    """From its start to its end, with what the services spent on it."""
    before = {name: CpuSeconds.of(pid) for name, pid in server.pids.items()}
    start, own = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    where = () if "--engine" in flags else ("--target", server.address)
    asked = [source, "--id-column", "id", "--output", target, "--restart", *where, *flags]
    environment = os.environ | modules_of(ROOT) | {"OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program, *asked], env=environment, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    spent = {name: (CpuSeconds.of(pid) - before[name]).whole for name, pid in server.pids.items()}
    spent["command"] = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    parts = {f"{name}: CPU ms/text": each / texts * 1e3 for name, each in spent.items()}
    return {"texts/s": texts / seconds, "CPU ms/text": sum(parts.values()), **parts, "s": seconds}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """One case."""
    lengths, draw = lognormal(QUICK if options.quick else TEXTS, mean=MEAN), random.Random(1)
    lines = [json.dumps({"id": str(at), "text": text(MINILM, each, draw)}) for at, each in enumerate(lengths)]
    source, count, rows = options.folder / "texts.jsonl", len(lines), list[Any]()
    source.write_text("\n".join(lines))
    with ExitStack() as cleanup:
        server = cleanup.enter_context(pair(ROOT, options.threads))
        sides: dict[str, Callable[..., Figures]] = {
            name: partial(command, server, count, program, flags, source=str(source))
            for name, (program, flags) in SIDES.items()
        }
        yield {
            f"{count:,} texts, {sum(lengths):,} tokens": {
                name: partial(compared, side, str(options.folder / name.replace("/", " ")), rows)
                for name, side in sides.items()
            }
        }
