"""Where the milliseconds of one client go: one text a call, from the socket to the answer, part by part.

Both services run with stamps at the points where a part ends (`benchmarks/load/stamped.py`); the client is this
process, which waits for each answer. A part is the median over the calls of a turn; `a call` is the whole, and `beside
the engine` what is left of each call without its encoder and heads. Beside it: the floor, two null grpc.aio hops (a
server that asks a second one, with messages of the same sizes), and `selvage.Engine` in one process, without any hop.
"""

import asyncio
import base64
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from benchmarks.benchmark import OURS, Options
from benchmarks.load.null_server import null_server
from benchmarks.load.stamped import POINTS, first_stamps
from benchmarks.load.target import EMBED
from benchmarks.machine import describe
from benchmarks.peers import infinity
from benchmarks.peers.process import Peer
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import MAX_TOKENS, MINILM, text
from harness.member import ServiceProcess
from selvage.v1 import embedding_pb2
from shared.server.options import PUBLIC_SERVICES, WORKER_SERVICES, channel_options

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("a call, p50 ms",)
PEERS: Mapping[str, Sequence[str]] = {}
FLOOR, RELAYED, ALONE = "two null grpc.aio hops", "one null grpc.aio hop", "selvage.Engine"
FORMATS, TOKENS = ("float32", "bfloat16"), (16, 128)
CALL, BESIDE = "a call, p50 ms", "beside the engine, p50 ms"
PARTS = {
    "client to frontend": ("begins", "arrived"),
    "frontend: read, check": ("arrived", "read"),
    "frontend: tokenise": ("read", "tokenised"),
    "frontend: job, message": ("tokenised", "job left"),
    "to the worker": ("job left", "job came"),
    "worker: read, check": ("job came", "queued"),
    "worker: queue": ("queued", "planned"),
    "worker: plan, pack, to its thread": ("planned", "computing"),
    "engine: encoder": ("computing", "pooling"),
    "engine: pooling, rows": ("pooling", "computed"),
    "worker: from its thread": ("computed", "collecting"),
    "worker: result, message": ("collecting", "answer left"),
    "to the frontend": ("answer left", "answer came"),
    "frontend: check, reply": ("answer came", "reply made"),
    "frontend to client": ("reply made", "received"),
    "client: decode": ("received", "ends"),
}
"""Parts of a call, from one point to the next one."""
ROW = (*POINTS, "begins", "received", "ends")
HTTP_OK = 200
LEAST_WHOLE = 0.95
"""Share of the calls that must have all stamps."""
WARM_UP = 30
"""Calls before a turn."""

Ask = Callable[[], Awaitable[bytes]]
Decode = Callable[[bytes], Any]


class Pair:
    """A stamped worker and its frontend."""

    def __init__(self, worker: ServiceProcess, frontend: ServiceProcess, stamps: Sequence[Path]) -> None:
        self.worker, self.frontend, self.stamps = worker, frontend, stamps


@asynccontextmanager
async def stamped_pair(dtype: str, options: Options) -> AsyncIterator[Pair]:
    """Starts the services in a number format. Raises MemberFailed."""
    async with AsyncExitStack() as cleanup:
        files = [options.folder / f"{monotonic_ns()}-{service}" for service in ("worker", "frontend")]

        async def started(service: str, names: Sequence[str], stamps: Path, flags: Mapping[str, object]) -> Any:
            environment = {"SERVICE": service, "STAMPS": str(stamps)}
            member = ServiceProcess("benchmarks.load.stamped", names, flags, environment=environment)
            cleanup.push_async_callback(member.stop)
            await member.start()
            return member

        flags = {"model": MINILM, "dtype": dtype, "threads": options.threads, "max-tokens": MAX_TOKENS}
        worker = await started("gpu_worker", WORKER_SERVICES, files[0], flags)
        flags = {"worker": worker.address, "http-listen": "127.0.0.1:0", "drain-delay": 0}
        frontend = await started("frontend_service", PUBLIC_SERVICES, files[1], flags)
        await frontend.wait_ready()
        yield Pair(worker, frontend, files)


def request(tokens: int) -> embedding_pb2.EmbedRequest:
    """A request with one text of so many tokens."""
    return embedding_pb2.EmbedRequest(texts=[text(MINILM, tokens, random.Random(1))])


@asynccontextmanager
async def grpc_calls(address: str, tokens: int) -> AsyncIterator[tuple[Ask, Decode]]:
    """How Embed is asked over gRPC, and how its reply is read."""
    message = request(tokens)
    async with grpc.aio.insecure_channel(address, options=channel_options()) as channel:
        call: Any = channel.unary_unary(EMBED)

        def decode(reply: bytes) -> Any:
            return np.frombuffer(embedding_pb2.EmbedResponse.FromString(reply).dense.data, dtype="<f4")

        yield lambda: call(message.SerializeToString(), timeout=60), decode


@asynccontextmanager
async def http_calls(url: str, tokens: int) -> AsyncIterator[tuple[Ask, Decode]]:
    """How /v1/embeddings is asked, as OpenAI's client does it by default, and how its reply is read."""
    import aiohttp  # may not be installed

    texts = [*request(tokens).texts]
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:

        async def ask() -> bytes:
            body = infinity.body(texts, rerank=False)
            async with session.post(f"{url}/v1/embeddings", data=body) as response:
                reply = await response.read()
                if response.status != HTTP_OK:
                    sys.exit(f"{url} answers with status {response.status}: {reply.decode()}")
                return reply

        def decode(reply: bytes) -> Any:
            return np.frombuffer(base64.b64decode(json.loads(reply)["data"][0]["embedding"]), dtype="<f4")

        yield ask, decode


async def timed(ask: Ask, decode: Decode, seconds: float) -> npt.NDArray[np.int64]:
    """Asks again and again. When each call began, was received and ended [calls, 3], in nanoseconds."""
    for _ in range(WARM_UP):
        decode(await ask())
    calls, end = list[tuple[int, int, int]](), monotonic_ns() + int(seconds * 1e9)
    while monotonic_ns() < end:
        begins = monotonic_ns()
        reply = await ask()
        received = monotonic_ns()
        decode(reply)
        calls.append((begins, received, monotonic_ns()))
    return np.array(calls, dtype=np.int64)


async def services(pair: Pair, api: str, tokens: int, seconds: float) -> Figures:
    """Measures both services, part by part, in milliseconds."""
    calls = grpc_calls if api == "gRPC" else http_calls
    address = pair.frontend.address if api == "gRPC" else pair.frontend.http_url
    async with calls(address, tokens) as (ask, decode):
        times = await timed(ask, decode, seconds)
    stamps = first_stamps(pair.stamps, len(POINTS), times[:, 0], int(times[-1, 2]))
    return parts(stamps, times)


def parts(stamps: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> Figures:
    """Medians of each part of calls, of the stamps [calls, points] and the times [calls, 3] of the client.

    Calls that lack a stamp are left out. Exits where these are many: what is left would be a choice of its own.
    """
    rows = np.concatenate([stamps, times], axis=1)
    rows = rows[(stamps > 0).all(axis=1)]
    if len(rows) < LEAST_WHOLE * len(times):
        lacking = POINTS[int((stamps > 0).sum(axis=0).argmin())]
        sys.exit(f"only {len(rows)} of {len(times)} calls came by every point; most lack '{lacking}'")

    def between(first: str, second: str) -> Any:
        return (rows[:, ROW.index(second)] - rows[:, ROW.index(first)]) / 1e6

    def median(values: Any) -> float:
        return float(np.median(values))

    call, engine = between("begins", "ends"), between("computing", "computed")
    return {
        CALL: median(call),
        BESIDE: median(call - engine),
        **{name: median(between(*points)) for name, points in PARTS.items()},
        "calls": float(len(times)),
        "calls with all stamps": float(len(rows)),
    }


async def null_hops(address: str, tokens: int, seconds: float) -> Figures:
    """Measures servers that do nothing."""
    async with grpc_calls(address, tokens) as (ask, decode):
        times = await timed(ask, decode, seconds)
    return {CALL: float(np.median(times[:, 2] - times[:, 0])) / 1e6}


def engine_alone(peer: Peer, tokens: int, seconds: float) -> Figures:
    """Measures `selvage.Engine` in a process of its own, without any hop."""
    return {CALL: peer.run("embed", seconds, tokens=tokens)["seconds"] * 1e3}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts a pair and an engine in each number format, and the null servers; yields the turns."""
    formats = [dtype for dtype in FORMATS if dtype == "float32" or "bf16" in describe()["processor"]]
    options.absent.update(
        {f"{OURS} {dtype}": "this processor emulates its products" for dtype in FORMATS if dtype not in formats}
    )
    with ExitStack() as cleanup:
        runner = cleanup.enter_context(asyncio.Runner())
        null, _ = cleanup.enter_context(null_server())
        relay, _ = cleanup.enter_context(null_server(relay=null))
        cases: dict[str, dict[str, Turn]] = {}
        for dtype in formats[:1] if options.quick else formats:
            pair = _entered(runner, stamped_pair(dtype, options), cleanup)
            command = [sys.executable, "-m", "benchmarks.peers.one_text_peer", dtype, str(options.threads)]
            peer = cleanup.enter_context(Peer(command, threads=options.threads))
            for tokens in TOKENS:
                for api in ("gRPC", "HTTP"):

                    def ours(pair: Pair = pair, api: str = api, tokens: int = tokens) -> Figures:
                        return runner.run(services(pair, api, tokens, options.seconds))

                    sides = cases[f"{tokens} tokens, {dtype}, {api}"] = {OURS: ours}
                    if api == "gRPC":
                        for name, address in ((FLOOR, relay), (RELAYED, null)):
                            sides[name] = partial(_run_null, runner, address, tokens, options.seconds)
                        sides[ALONE] = partial(engine_alone, peer, tokens, options.seconds)
        yield cases


def _run_null(runner: asyncio.Runner, address: str, tokens: int, seconds: float) -> Figures:
    return runner.run(null_hops(address, tokens, seconds))


def _entered(runner: asyncio.Runner, context: Any, cleanup: ExitStack) -> Any:
    """Enters an asynchronous context until the end of `cleanup`."""

    async def enter() -> Any:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    entered = runner.run(enter())
    cleanup.callback(lambda: runner.run(leave()))
    return entered
