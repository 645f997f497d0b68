"""Rows between worker and frontend: CPU seconds a gigabyte, event loops apart, with an engine that answers at once.

`link`: up to the JobResult in a frontend. `Embed`: up to the reply, through the whole frontend, tokenising included.
With `--against PATH` another checkout takes turns. `shared memory alone`: the same bytes copied into shared memory, and
out of it, which is the least that both would take if a ring of it replaced the link.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.rounds import Figures, Turn

WHOSE, RATE, COMPARED, finished = OURS, "MB/s", ("MB/s", "all: CPU s/GB"), as_found
PEERS: Mapping[str, tuple[str, ...]] = {}
CASES = {
    "16 x 253 token rows, bfloat16": {"texts": 16, "length": 253, "output": 3, "data_type": 3, "clients": 3},
    "16 x 253 token rows, float32": {"texts": 16, "length": 253, "output": 3, "data_type": 1, "clients": 3},
    "64 dense rows, float32": {"texts": 64, "length": 16, "output": 1, "data_type": 1, "clients": 16},
}
"""Outputs and data types by their numbers in the contract. Rows have 1,024 dimensions."""


def started(cleanup: ExitStack, checkout: Path, *command: str | Path, ready: str) -> tuple["Popen[str]", str]:
    """A process of a checkout that says `ready`, ended with `cleanup`; where it listens, if it does."""
    environment, address = os.environ | modules_of(checkout) | {"PYTHONUNBUFFERED": "1"}, ""
    python = [sys.executable, "-P", *map(str, command)]
    process = Popen(python, cwd=checkout, env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True)
    cleanup.enter_context(process)
    cleanup.callback(process.terminate)
    assert process.stdout is not None
    for line in process.stdout:
        if '"listening"' in line:
            address = json.loads(line)["address"]
        if ready in line:
            return process, address
    sys.exit(f"{python} did not start")


def turn(
    worker: "Popen[str]", frontend: "Popen[str]", receiver: "Popen[str]", case: Mapping[str, int], seconds: float
) -> Figures:
    """Jobs one after the other by each client."""
    assert receiver.stdin is not None
    assert receiver.stdout is not None
    before, start = [CpuSeconds.of(each.pid) for each in (worker, frontend)], time.monotonic()
    receiver.stdin.write(json.dumps({"seconds": seconds, **case}) + "\n")
    receiver.stdin.flush()
    told = next(line for line in receiver.stdout if line.startswith("{"))
    gigabytes, took = json.loads(told)["bytes"] / 1e9, time.monotonic() - start
    found: dict[str, float] = {}
    for name, each, then in zip(("worker", "frontend"), (worker, frontend), before, strict=True):
        spent = CpuSeconds.of(each.pid) - then
        found[f"{name}'s event loop: CPU s/GB"] = spent.event_loop / gigabytes
        found[f"{name}'s other threads: CPU s/GB"] = (spent.whole - spent.event_loop) / gigabytes
    return {"MB/s": 1e3 * gigabytes / took, "all: CPU s/GB": sum(found.values()), **found}


def shared_memory(case: Mapping[str, int], seconds: float) -> Figures:
    """A job's bytes go round in 64 MiB of it, and come from as many."""
    rows = case["texts"] * (case["length"] if case["output"] == 3 else 1)
    size, whole = rows * 1024 * (4 if case["data_type"] == 1 else 2), 64 * 1024 * 1024
    source, ring, spent, jobs = memoryview(bytearray(os.urandom(whole))), mmap.mmap(-1, whole), [0.0, 0.0], 0
    while sum(spent) < seconds:
        place, times = jobs * size % (whole - size), [time.thread_time()]
        ring[place : place + size] = source[place : place + size]
        times.append(time.thread_time())
        ring[place : place + size]  # as bytes of their own
        times.append(time.thread_time())
        jobs, spent = jobs + 1, [spent[0] + times[1] - times[0], spent[1] + times[2] - times[1]]
    worker, frontend = (each / (jobs * size / 1e9) for each in spent)
    told = {"worker's event loop: CPU s/GB": worker, "frontend's other threads: CPU s/GB": frontend}
    return {"MB/s": 1e3 / (worker + frontend), "all: CPU s/GB": worker + frontend, **told}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Each checkout has a worker, a receiver that is a frontend itself, and a frontend with a receiver before it."""
    files = ROOT / "benchmarks" / "load"
    with ExitStack() as cleanup:
        found: dict[str, dict[str, Turn]] = {}
        for side, checkout in options.checkouts.items():
            start = partial(started, cleanup, checkout)
            flags = ("--model=random:tiny-bge-m3", "--device=cpu", "--step-tokens=16384", "--listen=127.0.0.1:0")
            worker, address = start(files / "made_up.py", *flags, ready='"ready"')
            attached, _ = start(files / "receiver.py", "link", address, ready="{}")
            services = ("-m", "frontend_service", f"--worker={address}", "--listen=127.0.0.1:0")
            frontend, address = start(*services, ready='"worker ready"')
            caller, _ = start(files / "receiver.py", "embed", address, ready="{}")
            for way, (middle, end) in {"link": (attached, attached), "Embed": (frontend, caller)}.items():
                for name, case in CASES.items():
                    sides = found.setdefault(f"{way}, {name}", {})
                    sides[side] = partial(turn, worker, middle, end, case, options.seconds)
                    sides[side]()
        for name, case in CASES.items():
            found[f"link, {name}"]["shared memory alone"] = partial(shared_memory, case, options.seconds / 4)
        yield found
