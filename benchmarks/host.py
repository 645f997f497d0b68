"""The host's CPU of a request in both services, beside a pair of null servers of which one asks the other.

The model is the first layer of MiniLM; its products alone are a bound of what the worker takes. Two more workers have
no model and make vectors that mean nothing: one answers at once, the steps of the other take the time of an H200. The
null pair gets the same bytes and answers with as many: it is what gRPC costs. CPU is reported by part, and of its event
loop and of gRPC's own threads apart; other threads compute, tokenise and read large messages. Last, workers alone get
messages of texts: as jobs of many callers, or as the one job that a frontend makes of one caller's.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from shutil import copytree
from typing import Any

from safetensors.numpy import load_file, save_file

from benchmarks.benchmark import ALONE, OURS, Options, Turn
from benchmarks.engine import peer_of, products
from benchmarks.load.null_server import null_server
from benchmarks.load.target import LINK, MERGED
from benchmarks.servers import Server, generated, running_stack, server_of
from benchmarks.workloads import minilm_folder, named

OUR_SIDE, RATE = OURS, "tokens/s"
COMPARED = (
    "frontend: CPU ms/request",
    "worker: CPU ms/request",
    "frontend's event loop: CPU ms/request",
    "worker's event loop: CPU ms/request",
    "requests/s",
)
NULL_PAIR, NO_MODEL, TIMED = "null pair", "selvage without a model", "selvage, steps as on an H200"
H200 = {"step-seconds": 0.001, "tokens-per-second": 1.87e6}
"""What a step takes: a millisecond, about half of what a single client of `clients` waits there, and its tokens at the
rate of 128 clients (results/accelerator.json, bge-base)."""
WORKER = "benchmarks.instant_worker"
LOADS = (
    *((clients, "16-tokens", 1) for clients in (1, 16, 64, 256)),
    (16, "64-texts", 64),
    (16, "20-documents", 20),
)
"""Clients, workload, and results of a request."""
BUSY = LOADS[2]
MESSAGES = ("16-texts", "64-texts")
"""Workloads whose requests go to a worker as a message of jobs."""
IN_FLIGHT = 4
"""Messages at a time."""


def write_one_layer(folder: Path) -> Path:
    """Writes MiniLM with its first layer only, and gives its folder."""
    copytree(minilm_folder(), folder, ignore=lambda *_: ["model.safetensors"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    weights = load_file(minilm_folder() / "model.safetensors")
    first = {name: array for name, array in weights.items() if ".layer." not in name or ".layer.0." in name}
    save_file(first, folder / "model.safetensors", {"format": "pt"})
    return folder


@contextmanager
def null_pair(results: int) -> Iterator[Server]:
    """Runs two null servers; the first asks the second. `results`: vectors or scores of a reply."""
    with null_server(results) as (back, worker), null_server(results, relay=back) as (front, frontend):
        yield Server(address=front, pids={"worker": [worker], "frontend": [frontend]})


def linked(server: Server, link: str) -> Server:
    """The worker of a pair alone, which is called by its link."""
    return Server(address=f"{link}{server.worker}", pids={"worker": server.pids["worker"]})


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts ours, other checkouts and the null pairs; yields their turns under all loads."""
    folder = options.folder / "one-layer"
    model = str(folder if folder.exists() else write_one_layer(folder))
    worker = {"threads": options.threads}
    with ExitStack() as cleanup:
        servers = {
            name: server_of(cleanup.enter_context(running_stack(model, worker=worker, checkout=path)))
            for name, path in options.checkouts.items()
        }
        without_model = [
            server_of(cleanup.enter_context(running_stack("", worker_module=WORKER, worker=flags)))
            for flags in ({}, H200)
        ]
        layer = cleanup.enter_context(peer_of(options.threads, model=model))
        null_pairs = {results: cleanup.enter_context(null_pair(results)) for results in {load[2] for load in LOADS}}
        cases: dict[str, dict[str, Turn]] = {}
        for clients, name, results in (BUSY,) if options.quick else LOADS:
            workload = named()[name]
            load: dict[str, Any] = {"workload": workload, "clients": clients, "seconds": options.seconds}
            sides = {**servers, NULL_PAIR: null_pairs[results]}
            if workload.kind == "dense":
                sides |= dict(zip((NO_MODEL, TIMED), without_model, strict=True))
            case = f"{clients} client{'s' * (clients > 1)}, {workload.says}"
            cases[case] = {side: partial(generated, server, **load) for side, server in sides.items()}
            if (clients, name, results) == BUSY:
                cases[case][ALONE] = products(layer)
        workers = {**servers, NO_MODEL: without_model[0]}
        for name, link in product(MESSAGES, (LINK, MERGED)):
            workload = named()[name]
            load = {"workload": workload, "clients": IN_FLIGHT, "seconds": options.seconds}
            callers = "many callers" if link is LINK else "one caller"
            cases[f"messages of {len(workload.requests[0])} texts of {callers}"] = {
                side: partial(generated, linked(server, link), **load) for side, server in workers.items()
            }
        yield cases
