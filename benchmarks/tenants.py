"""Nine honest callers, alone and beside a tenth whose every limit is 1 and who takes all it can get.

Each caller has an API key. The honest ones have four calls in flight each, with a text of 64 tokens; where streams or
connections are taken, every call has one of its own. The tenth may have one request and one stream at a time. It opens
64 streams at once, or holds 4,500 idle connections and opens 100 a second of those that were ended again, or sends
requests of 60 MB, or of 64,000 tokens; after a refusal it waits for half a second. All share the cores with the
services, so the tenth runs at the lowest priority: a machine of its own would take nothing from them.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.benchmark import Options
from benchmarks.load.tenants import APIS, WAYS
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import MINILM
from frontend_service.access.api_keys import hashed

OUR_SIDE, ALONE = "nine beside the tenth", "nine alone"
RATE, COMPARED = "tokens/s", ("p99 ms", "p50 ms", "requests/s")
PEERS: dict[str, tuple[str, ...]] = {}
HONEST = [f"sv-honest-{number}" for number in range(9)]
TENTH = "sv-tenth"
READY = re.compile(r"Ready: worker \S+ \(process \d+\), frontend (\S+) \(process \d+\), HTTP http://(\S+?)\. Ctrl-C")
WARM = 1.0
"""Seconds that the tenth is there before the others are measured."""


@contextmanager
def served(folder: Path, threads: int) -> Iterator[dict[str, str]]:
    """Runs a pair that asks for API keys; yields the address of each API. Exits where it does not start."""
    keys = folder / "keys.toml"
    entries = [f'[[keys]]\nname = "{key}"\nsha256 = "{hashed(key)}"\n' for key in (*HONEST, TENTH)]
    entries[-1] += "requests_at_once = 1\nstreams_at_once = 1\n"
    keys.write_text("\n".join(entries))
    settings = {"SELVAGE_WORKER_THREADS": str(threads), "SELVAGE_FRONTEND_API_KEYS": str(keys)}
    ports = ("--worker", "127.0.0.1:0", "--frontend", "127.0.0.1:0", "--http", "127.0.0.1:0")
    command = [sys.executable, "-m", "harness", "--model", MINILM, *ports]
    environment = os.environ | settings | modules_of(ROOT) | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(filter(None, map(READY.search, process.stdout)), None)
            if ready is None:
                sys.exit("the services did not start")
            yield {"grpc": ready[1], "tei": ready[1], "http": ready[2]}
        finally:
            process.terminate()
            process.communicate()  # it still writes while it drains


def measured(addresses: Mapping[str, str], api: str, way: str, seconds: float, *, beside: bool) -> Figures:
    """Measures the honest callers, with the tenth `beside` them or without."""
    command = [sys.executable, "-m", "benchmarks.load.tenants"]
    flags = ["--api", api, "--address", addresses[api], "--way", way]
    environment = os.environ | modules_of(ROOT)
    start = partial(subprocess.Popen, cwd=ROOT, env=environment, text=True)
    tenth = start([*command, "greedy", *flags, "--keys", TENTH]) if beside else None
    try:
        if tenth is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                sys.exit(f"the tenth caller ended by itself with {tenth.wait(WARM)}")
        line = ["honest", *flags, "--keys", ",".join(HONEST), "--seconds", str(seconds)]
        done = subprocess.run([*command, *line], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    finally:
        if tenth is not None:
            tenth.kill()
            tenth.wait()
    if done.returncode:
        sys.exit(f"the honest callers ended with {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts our services; yields the turns of the honest callers for each API and each thing that may be taken."""
    with served(options.folder, options.threads) as addresses:
        yield {
            f"{api}, {way}": {
                side: partial(measured, addresses, api, way, options.seconds, beside=side == OUR_SIDE)
                for side in (ALONE, OUR_SIDE)
            }
            for api in APIS
            for way in WAYS
            if (api, way) != ("http", "streams")
        }
