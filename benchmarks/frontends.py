"""Frontends beside a worker that answers at once: requests a second, and CPU seconds a request by process.

The worker has the real service, link and driver, and an engine whose steps take no time; the text's tokens are real.
1, 2 and 4 frontends by gRPC, tei.v1 and HTTP, 1 to 256 clients; then longer texts, several texts a request, token rows.
Generator, frontends and worker share the cores, so requests/s here are those of this machine's cores for all of them.
CPU a request of a process depends far less on the sharing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import Figures, Options, Turn
from benchmarks.load.null_server import null_server
from benchmarks.load.target import TEI
from benchmarks.servers import Server, generated, running_stack, server_of
from benchmarks.services import NULL, null
from benchmarks.workloads import Workload, named
from harness.stack import Stack

OUR_SIDE, RATE, COMPARED = "gRPC", "tokens/s", ("requests/s",)
APIS = ("gRPC", "tei.v1", "HTTP")
WORKER = "benchmarks.instant_worker"
SHORT, BUSY = "16-tokens", 64
LISTS = ("gRPC", "HTTP")
"""APIs whose requests may have several texts."""
LOADS = (
    *((1, clients, SHORT, APIS) for clients in (1, 4, 16, BUSY, 256)),
    *((frontends, BUSY, SHORT, APIS) for frontends in (2, 4)),
    (1, BUSY, "128-tokens", APIS),
    *((1, 16, workload, LISTS) for workload in ("32-texts", "32-long-texts")),
    (1, 2, "22-megabytes", ("gRPC",)),
)
"""Frontends, clients, workload and APIs of each case."""


def load(running: Stack, api: str, frontends: int, workload: Workload, **options: Any) -> Figures:
    """Drives the first so many frontends by one API."""
    server = server_of(running, frontends)
    urls = [f"{front.http_url}/v1/embeddings" for front in running.frontends[:frontends]]
    address = ",".join(urls) if api == "HTTP" else TEI * (api == "tei.v1") + server.address
    return generated(Server(address=address, pids=server.pids), workload, **options)


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts the worker, four frontends and the null server; yields their turns under all loads."""
    http = {"http-listen": "127.0.0.1:0"}
    with (
        running_stack("", frontends=4, frontend=http, worker_module=WORKER) as running,
        null_server() as (address, pid),
    ):
        bare, cases = Server(address=address, pids={"null": [pid]}), dict[str, dict[str, Turn]]()
        for frontends, clients, name, apis in LOADS:
            busy = (frontends, clients, name) == (1, BUSY, SHORT)
            if options.quick and not busy:
                continue
            workload, seconds = named()[name], options.seconds
            case = f"{frontends} frontend{'s' * (frontends > 1)}, {clients} client{'s' * (clients > 1)}"
            sides: dict[str, Turn] = {
                api: partial(load, running, api, frontends, workload, clients=clients, seconds=seconds) for api in apis
            }
            if busy:
                sides[NULL] = partial(null, bare, workload, clients=clients, seconds=seconds)
            cases[f"{case}, {'16 tokens' if name == SHORT else workload.says}"] = sides
        yield cases
