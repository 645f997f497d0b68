"""Frontends beside a worker that answers at once: requests a second, and CPU seconds a request by process.

The worker has the real service, link and driver, and an engine whose steps take no time; the text's tokens are real.
1, 2 and 4 frontends by gRPC, tei.v1 and HTTP, 1 to 256 clients; then longer texts, several texts a request, token rows.
Generator, frontends and worker share the cores, so requests/s here are those of this machine's cores for all of them.
CPU a request of a process depends far less on the sharing: `of a whole core` is what one core for that process alone
would give by it, and `of its event loop` what its one busiest thread would.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grpc

from benchmarks.benchmark import Figures, Options, Turn
from benchmarks.load.null_server import null_server
from benchmarks.load.target import EMBED, TEI
from benchmarks.services import NULL, Server, generated, null, running_stack
from benchmarks.workloads import SPECIAL, batches, named
from harness.stack import Stack
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.server.options import channel_options
from shared.vectors import DataType

OUR_SIDE, RATE, COMPARED = "gRPC", "tokens/s", ("requests/s",)
PEERS: Mapping[str, Sequence[str]] = {}
APIS = ("gRPC", "tei.v1", "HTTP")
WORKER = "benchmarks.instant_worker"
SHORT, TOKENS, BUSY = "16-tokens", "16 tokens", 64
CPU, EVENT_LOOP = "CPU ms/request", "'s event loop"
CLIENTS, FRONTENDS = (1, 4, 16, BUSY, 256), (2, 4)
"""The curve of one frontend; further frontends, with BUSY clients."""
LISTS = ("gRPC", "HTTP")
"""APIs whose requests may have several texts."""
SHAPES = (
    ("128-tokens", BUSY, APIS),
    ("32-texts", 16, LISTS),
    ("32-long-texts", 16, LISTS),
    ("22-megabytes", 2, ("gRPC",)),
)
"""Other requests to one frontend: workload, clients, APIs."""
PARTS = ("clients", "frontend", "worker")
ROW_TEXTS, ROW_WORDS = 16, 126
"""Texts, and words of each, of the requests whose replies are weighed."""


def server_of(running: Stack, api: str, frontends: int) -> Server:
    """The first so many frontends by one API, and all processes whose CPU is measured."""
    chosen = running.frontends[:frontends]
    addresses = [front.http_url if api == "HTTP" else front.address for front in chosen]
    pids = {f"frontend {number}": front.pid for number, front in enumerate(chosen, 1)}
    return Server(address=TEI * (api == "tei.v1") + ",".join(addresses), pids=pids | {"worker 1": running.worker.pid})


def load(running: Stack, api: str, frontends: int, workload: str, clients: int, seconds: float) -> Figures:
    """Drives the first so many frontends by one API."""
    return by_part(generated(server_of(running, api, frontends), workload, clients=clients, seconds=seconds))


def by_part(figures: Figures) -> dict[str, float]:
    """Adds up the CPU of all frontends, and derives the requests/s of a whole core, and of an event loop on one."""
    summed = {name: value for name, value in figures.items() if CPU not in name and "MiB" not in name}
    for part in PARTS:
        whole, event_loop = _cpu(figures, part, ""), _cpu(figures, part, EVENT_LOOP)
        summed[f"{part}: {CPU}"] = whole
        if whole:
            summed[f"{part}: requests/s of a whole core"] = 1e3 / whole
        if event_loop:
            summed |= {
                f"{part}{EVENT_LOOP}: {CPU}": event_loop,
                f"{part}: requests/s of its event loop": 1e3 / event_loop,
            }
    return summed


def _cpu(figures: Figures, part: str, thread: str) -> float:
    """The CPU milliseconds a request of all processes of a part, such as `frontend 1` and `frontend 2`."""
    ending = f"{thread}: {CPU}"
    named = {name.removesuffix(ending): value for name, value in figures.items() if name.endswith(ending)}
    return sum(value for name, value in named.items() if name.rstrip(" 0123456789") == part)


def sizes(running: Stack) -> Figures:
    """Weighs replies: bytes of a token's row by data type, and of a text's dense vector; what else a reply has counts.

    The link carries the same bytes from the worker to the frontend.
    """
    tokens, rows = ROW_TEXTS * (ROW_WORDS + SPECIAL), [vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]
    weighed: dict[str, float] = {}
    with grpc.insecure_channel(running.frontends[0].address, options=channel_options()) as channel:
        call: Any = channel.unary_unary(EMBED)

        def size(**options: Any) -> int:
            request = embedding_pb2.EmbedRequest(texts=["river " * ROW_WORDS] * ROW_TEXTS, **options)
            return len(call(request.SerializeToString(), timeout=60))

        for kind in DataType:
            weighed[f"{kind.name.lower()} rows: bytes/token"] = size(outputs=rows, data_type=int(kind)) / tokens
            weighed[f"{kind.name.lower()} vectors: bytes/text"] = size(data_type=int(kind)) / ROW_TEXTS
    return weighed


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts the worker, four frontends and the null server; yields their turns under all loads."""
    with ExitStack() as cleanup:
        http = {"http-listen": "127.0.0.1:0"}
        services = running_stack("", frontends=max(FRONTENDS), frontend=http, worker_module=WORKER)
        running = cleanup.enter_context(services)
        address, pid = cleanup.enter_context(null_server())
        bare = Server(address=address, pids={"null": pid})
        cases: dict[str, dict[str, Turn]] = {}

        def add(frontends: int, clients: int, says: str, workload: str, apis: Sequence[str]) -> None:
            name = f"{frontends} frontend{'s' * (frontends > 1)}, {clients} client{'s' * (clients > 1)}, {says}"
            seconds = options.seconds
            cases[name] = {api: partial(load, running, api, frontends, workload, clients, seconds) for api in apis}
            if (frontends, clients, workload) == (1, BUSY, SHORT):
                cases[name][NULL] = partial(null, bare, SHORT, clients=BUSY, seconds=seconds)

        for clients in (BUSY,) if options.quick else CLIENTS:
            add(1, clients, TOKENS, SHORT, APIS)
        for frontends in () if options.quick else FRONTENDS:
            add(frontends, BUSY, TOKENS, SHORT, APIS)
        for workload, clients, apis in () if options.quick else SHAPES:
            add(1, clients, (named() | batches())[workload].says, workload, apis)
        cases["sizes"] = {OUR_SIDE: partial(sizes, running)}
        yield cases
