"""Frontends beside a worker that answers at once: requests a second, and CPU seconds a request by process.

The worker has the real service, link and driver, and an engine whose steps take no time; the text's tokens are real.
1, 2 and 4 frontends by gRPC, tei.v1 and HTTP, 1 to 256 clients; then longer texts, several texts a request, token rows.
Generator, frontends and worker share the cores, so requests/s here are those of this machine's cores for all of them.
CPU a request of a process depends far less on the sharing: `of a whole core` is what one core for that process alone
would give by it, and `of its event loop` what its one busiest thread would.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc

from benchmarks.benchmark import Options
from benchmarks.load.null_server import null_server
from benchmarks.load.target import EMBED
from benchmarks.rounds import Figures, Turn
from benchmarks.services import NULL, Server, generated, null
from benchmarks.workloads import SPECIAL, batches, named
from harness.stack import Stack, stack
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.server.options import channel_options
from shared.vectors import DataType

T = TypeVar("T")
OUR_SIDE, RATE, COMPARED = "gRPC", "tokens/s", ("requests/s",)
PEERS: Mapping[str, Sequence[str]] = {}
SCHEMES = {"gRPC": "", "tei.v1": "tei:", "HTTP": "http://"}
"""APIs, and the beginnings of their addresses as the load generator takes them."""
WORKER = "benchmarks.instant_worker"
SHORT, TOKENS, BUSY = "16-tokens", "16 tokens", 64
CPU, OF_CORE, OF_LOOP = "CPU ms/request", "requests/s of a whole core", "requests/s of its event loop"
ROW_BYTES, VECTOR_BYTES = "{} rows: bytes/token", "{} vectors: bytes/text"
EVENT_LOOP, SIZES = "'s event loop", "sizes"
CLIENTS, FRONTENDS = (1, 4, 16, BUSY, 256), (2, 4)
"""The curve of one frontend; further frontends, with BUSY clients."""
LISTS = ("gRPC", "HTTP")
"""APIs whose requests may have several texts."""
SHAPES = (("128-tokens", BUSY, (*SCHEMES,)), ("32-texts", 16, LISTS), ("32-long-texts", 16, LISTS))
"""Other requests to one frontend: workload, clients, APIs."""
ROWS = ("22-megabytes", 2)
"""Token rows over gRPC: workload, clients."""
PARTS = ("clients", "frontend", "worker")
ROW_TEXTS, ROW_WORDS = 16, 126
"""Texts, and words of each, of the requests whose replies are weighed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStack:
    """Processes that run, and the event loop that reads their logs while `beside` waits for other work."""

    processes: Stack
    runner: asyncio.Runner

    def server(self, api: str, frontends: int) -> Server:
        """The first so many frontends by one API, and all processes whose CPU is measured."""
        chosen = self.processes.frontends[:frontends]
        addresses = [front.http_address if api == "HTTP" else front.address for front in chosen]
        if api == "HTTP":
            addresses = [f"http://{address}" for address in addresses]
        pids = {f"frontend {number}": front.pid for number, front in enumerate(chosen, 1)}
        pids |= {f"worker {number}": worker.pid for number, worker in enumerate(self.processes.workers, 1)}
        return Server(address=f"{SCHEMES[api] if api == 'tei.v1' else ''}{','.join(addresses)}", pids=pids)

    def beside(self, work: Callable[[], T]) -> T:
        """Does work that blocks in a thread."""

        async def run() -> T:
            return await asyncio.to_thread(work)

        return self.runner.run(run())


@contextmanager
def running_stack() -> Iterator[RunningStack]:
    """Starts the worker and frontends with all three APIs; drains them at the end. Raises MemberFailed."""
    with asyncio.Runner() as runner:
        cleanup = AsyncExitStack()

        async def enter() -> Stack:
            http = {"http-listen": "127.0.0.1:0"}
            processes = stack("", frontends=max(FRONTENDS), frontend=http, worker_module=WORKER)
            return await cleanup.enter_async_context(processes)

        try:
            yield RunningStack(processes=runner.run(enter()), runner=runner)
        finally:
            runner.run(cleanup.aclose())


def load(running: RunningStack, api: str, frontends: int, workload: str, clients: int, seconds: float) -> Figures:
    """Drives the first so many frontends by one API."""
    server = running.server(api, frontends)
    work = partial(generated, server, workload, clients=clients, seconds=seconds)
    return by_part(running.beside(work))


def by_part(figures: Figures) -> dict[str, float]:
    """Adds up the CPU of all frontends, and derives the requests/s of a whole core, and of an event loop on one."""
    summed = {name: value for name, value in figures.items() if CPU not in name and "MiB" not in name}
    for part in PARTS:
        whole, event_loop = _cpu(figures, part, ""), _cpu(figures, part, EVENT_LOOP)
        summed[f"{part}: {CPU}"] = whole
        if whole:
            summed[f"{part}: {OF_CORE}"] = 1e3 / whole
        if event_loop:
            summed |= {f"{part}{EVENT_LOOP}: {CPU}": event_loop, f"{part}: {OF_LOOP}": 1e3 / event_loop}
    return summed


def _cpu(figures: Figures, part: str, thread: str) -> float:
    """The CPU milliseconds a request of all processes of a part, such as `frontend 1` and `frontend 2`."""
    ending = f"{thread}: {CPU}"
    named = {name.removesuffix(ending): value for name, value in figures.items() if name.endswith(ending)}
    return sum(value for name, value in named.items() if name.rstrip(" 0123456789") == part)


def sizes(running: RunningStack) -> Figures:
    """Weighs replies: bytes of a token's row by data type, and of a text's dense vector; what else a reply has counts.

    The link carries the same bytes from the worker to the frontend.
    """
    address = running.server(OUR_SIDE, 1).address

    def size(**options: Any) -> int:
        request = embedding_pb2.EmbedRequest(texts=["river " * ROW_WORDS] * ROW_TEXTS, **options)
        with grpc.insecure_channel(address, options=channel_options()) as channel:
            call: Any = channel.unary_unary(EMBED)
            return len(call(request.SerializeToString(), timeout=60))

    def weigh() -> dict[str, float]:
        tokens, rows = ROW_TEXTS * (ROW_WORDS + SPECIAL), [vectors_pb2.OUTPUT_KIND_MULTI_VECTOR]
        kinds = {kind.name.lower(): int(kind) for kind in DataType}
        weighed = {ROW_BYTES.format(name): size(outputs=rows, data_type=kind) / tokens for name, kind in kinds.items()}
        dense = {VECTOR_BYTES.format(name): size(data_type=kind) / ROW_TEXTS for name, kind in kinds.items()}
        return weighed | dense

    return running.beside(weigh)


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts the worker, four frontends and the null server; yields their turns under all loads."""
    with ExitStack() as cleanup:
        running = cleanup.enter_context(running_stack())
        address, pid = cleanup.enter_context(null_server())
        bare = Server(address=address, pids={"null": pid})
        cases: dict[str, dict[str, Turn]] = {}

        def add(name: str, frontends: int, workload: str, clients: int, apis: Sequence[str]) -> None:
            cases[name] = {
                api: partial(load, running, api, frontends, workload, clients, options.seconds) for api in apis
            }

        for clients in (BUSY,) if options.quick else CLIENTS:
            add(f"1 frontend, {clients} client{'s' * (clients > 1)}, {TOKENS}", 1, SHORT, clients, (*SCHEMES,))
        cases[f"1 frontend, {BUSY} clients, {TOKENS}"][NULL] = partial(
            null, bare, SHORT, clients=BUSY, seconds=options.seconds
        )
        if not options.quick:
            for frontends in FRONTENDS:
                add(f"{frontends} frontends, {BUSY} clients, {TOKENS}", frontends, SHORT, BUSY, (*SCHEMES,))
            for workload, clients, apis in SHAPES:
                says = (named() | batches())[workload].says
                add(f"1 frontend, {clients} clients, {says}", 1, workload, clients, apis)
            workload, clients = ROWS
            add(f"1 frontend, {clients} clients, {named()[workload].says}", 1, workload, clients, (OUR_SIDE,))
        cases[SIZES] = {OUR_SIDE: partial(sizes, running)}
        yield cases
