"""Where the event loops' time goes: CPU milliseconds a request of each process, by part, at 64 clients of 16 tokens.

py-spy looks at the main thread 200 times a second while the load generator calls. What it finds at work is divided by
the innermost of our files, and multiplied by the CPU time that Linux tells. Looks that find it in select are left out,
since most of them find it waiting; so what select costs is in all parts by their share. A null grpc.aio server shows
what none of ours could save. py-spy needs the right to trace; in a container that is --cap-add SYS_PTRACE.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.load.null_server import null_server
from benchmarks.rounds import Figures, Turn
from benchmarks.services import NULL, SHORT, Server, generator, pair, told_by

WHOSE, RATE, COMPARED = "frontend", "tokens/s", ()
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WARMUP, LOOKS = 64, 3.0, 200
LIBRARIES = "gRPC and asyncio"
PARTS = {
    LIBRARIES: ("grpc/", "asyncio/", "null_server.py"),
    "calls: admission, limits, metrics": ("shared/rpc/", "calls.py", "admission/", "memory.py", "request_id.py"),
    "messages": ("codec", "/doors/"),
    "tokenising": ("reader.py", "tokenization.py", "turns.py", "parting.py"),
    "link": ("frontend_service/worker/", "gpu_worker/link/", "gpu_worker/server.py", "shared/load.py"),
    "planning": ("gpu_worker/planning/", "loop.py", "scheduler.py"),
    "jobs and results": ("gpu_worker/jobs/", "gpu_worker/step/", "gpu_worker/ragged/", "results.py"),
}
"""By pieces of a file's path, the first that fits."""
OTHERS = "others"
OWN = ("frontend_service/", "gpu_worker/", "shared/", "benchmarks/")
finished = as_found


def part(stack: str) -> str:
    """Of a stack as py-spy writes it, `thread;function (file:line);...`, the innermost last."""
    files = [frame.rpartition("(")[2] for frame in stack.split(";")]
    leaf = files[-1]
    ours = [each for each in files if each.startswith(OWN) and "__main__" not in each]
    library = leaf.startswith(("grpc/", "asyncio/"))
    file = leaf if library or not ours else ours[-1]
    return next((name for name, pieces in PARTS.items() if any(piece in file for piece in pieces)), OTHERS)


def looked_at(server: Server, process: str, seconds: float, folder: Path) -> Figures:
    """CPU milliseconds a request of a process's event loop, by part."""
    file = folder / f"{process}.txt"
    look = [
        str(Path(sys.executable).with_name("py-spy")),
        "record",
        "--pid",
        str(server.pids[process]),
        "--duration",
        str(max(1, round(seconds))),
    ]
    how = ["--rate", str(LOOKS), "--format", "raw", "--threads", "--output", str(file)]
    load = {"clients": CLIENTS, "warmup": WARMUP, "seconds": seconds}
    with generator(server, SHORT, **load) as calling:
        try:
            calling.wait(WARMUP)
        except subprocess.TimeoutExpired:
            subprocess.run([*look, *how], check=False)
        figures = told_by(calling)
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        if "MainThread" in stack.partition(";")[0] and "(selectors.py" not in stack.rpartition(";")[2]:
            found[part(stack)] += int(count)
    cpu = figures[f"{process}'s event loop: CPU ms/request"]
    shares = {name: cpu * found[name] / found.total() for name in (*PARTS, OTHERS) if found[name]}
    return {"requests/s": figures["requests/s"], "event loop: CPU ms/request": cpu} | shares


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Each process in its turn."""
    with ExitStack() as cleanup:
        ours = cleanup.enter_context(pair(options.checkouts[OURS], options.threads))
        address, pid = cleanup.enter_context(null_server())
        bare = Server(address=address, pids={NULL: pid})
        asked = {"frontend": ours, "worker": ours, NULL: bare}
        yield {
            f"{CLIENTS} clients, 16 tokens": {
                name: partial(looked_at, server, name, options.seconds, options.folder)
                for name, server in asked.items()
            }
        }
