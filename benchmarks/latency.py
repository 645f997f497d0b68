"""Where the milliseconds of one client go: one text a call, by the times that the services tell with every answer.

The client waits for each answer; every figure is the median over the calls of a turn. `a call` is the whole, `beside
compute` what is left of each call without its steps on the device, and `beside all that is told` what neither service
counts: both hops of the caller, reading and writing. Beside it: the floor, two null grpc.aio hops (a server that asks
a second one, with messages of the same sizes), and `selvage.Engine` in a process of its own.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from time import perf_counter
from typing import Any

import grpc
import numpy as np

from benchmarks.benchmark import OURS, Figures, Options, Turn
from benchmarks.load.null_server import null_server
from benchmarks.load.target import EMBED, body, message
from benchmarks.machine import describe
from benchmarks.peers.answering import answer
from benchmarks.peers.process import Peer
from benchmarks.servers import running_stack
from benchmarks.workloads import MAX_TOKENS, MINILM, text
from selvage import Engine
from selvage.v1 import embedding_pb2
from shared.server.options import channel_options

CALL = "a call, p50 ms"
OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", (CALL,)
FLOOR, RELAYED, ALONE = "two null grpc.aio hops", "one null grpc.aio hop", "selvage.Engine"
FORMATS, TOKENS = ("float32", "bfloat16"), (16, 128)
PARTS = ("tokenize", "queue", "compute", "transfer", "postprocess")
"""What the services tell of a call: fields of Timing, and of the header `server-timing`."""
WARM_UP = 30
"""Calls before a turn."""

Ask = Callable[[], dict[str, float]]
"""Makes a call, and gives the milliseconds of each part that the services tell."""


def texts_of(tokens: int) -> list[str]:
    """A text of so many tokens."""
    return [text(MINILM, tokens, random.Random(1))]


@contextmanager
def grpc_calls(address: str, tokens: int) -> Iterator[Ask]:
    """How Embed is asked over gRPC, and its reply read."""
    with grpc.insecure_channel(address, options=channel_options()) as channel:
        call: Any = channel.unary_unary(EMBED)

        def ask() -> dict[str, float]:
            reply = embedding_pb2.EmbedResponse.FromString(call(message("dense", texts_of(tokens)), timeout=60))
            np.frombuffer(reply.dense.data, dtype="<f4")
            return {part: getattr(reply.timing, part).ToMicroseconds() / 1e3 for part in PARTS}

        yield ask


@contextmanager
def http_calls(url: str, tokens: int) -> Iterator[Ask]:
    """How /v1/embeddings is asked, with base64 as by OpenAI's client, and its reply read."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:

        def ask() -> dict[str, float]:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/embeddings", body("dense", MINILM, texts_of(tokens)), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            json.loads(response.read())
            parts = (part.partition(";dur=") for part in response.headers["server-timing"].split(", "))
            return {name: float(value) for name, _, value in parts}

        yield ask


def services(address: str, tokens: int, seconds: float) -> Figures:
    """Asks again and again for so many seconds: the medians of a call and of its parts, in milliseconds."""
    measured: list[dict[str, float]] = []
    with (http_calls if address.startswith("http") else grpc_calls)(address, tokens) as ask:
        for _ in range(WARM_UP):
            ask()
        end = perf_counter() + seconds
        while (begin := perf_counter()) < end:
            parts = ask()
            whole = 1e3 * (perf_counter() - begin)
            counted = {"beside compute": parts["compute"], "beside all that is told": sum(parts.values())}
            measured.append({"a call": whole} | {name: whole - value for name, value in counted.items()} | parts)
    return {f"{name}, p50 ms": float(np.median([call[name] for call in measured])) for name in measured[0]}


def null_hops(address: str, tokens: int, seconds: float) -> Figures:
    """Measures servers that do nothing, and tell nothing."""
    return {CALL: services(address, tokens, seconds)[CALL]}


def engine_alone(peer: Peer, tokens: int, seconds: float) -> Figures:
    """Measures `selvage.Engine` in a process of its own, without any hop."""
    return {CALL: peer.run("embed", seconds, tokens=tokens)["seconds"] * 1e3}


def engine_peer(dtype: Any, threads: str) -> dict[str, Any]:
    """Loads `selvage.Engine` in this process, for `Peer`. `embed`: a text of so many `tokens`."""
    engine = Engine(MINILM, dtype=dtype, threads=int(threads), max_tokens=MAX_TOKENS)
    return {"embed": lambda tokens: partial(engine.embed, texts_of(tokens))}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts a pair and an engine in each number format, and the null servers; yields the turns."""
    formats = [dtype for dtype in FORMATS if dtype == "float32" or "bf16" in describe()["processor"]]
    options.absent.update(
        {f"{OURS} {dtype}": "this processor emulates its products" for dtype in FORMATS if dtype not in formats}
    )
    cases: dict[str, dict[str, Turn]] = {}
    with ExitStack() as cleanup:
        null, _ = cleanup.enter_context(null_server())
        relay, _ = cleanup.enter_context(null_server(relay=null))
        for dtype in formats[:1] if options.quick else formats:
            worker = {"dtype": dtype, "threads": options.threads, "max-tokens": MAX_TOKENS}
            pair = cleanup.enter_context(running_stack(MINILM, worker=worker, frontend={"http-listen": "127.0.0.1:0"}))
            command = [sys.executable, "-m", "benchmarks.latency", dtype, str(options.threads)]
            peer = cleanup.enter_context(Peer(command, threads=options.threads))
            front = pair.frontends[0]
            for tokens in TOKENS:
                load = (tokens, options.seconds)
                cases[f"{tokens} tokens, {dtype}, gRPC"] = {
                    OURS: partial(services, front.address, *load),
                    FLOOR: partial(null_hops, relay, *load),
                    RELAYED: partial(null_hops, null, *load),
                    ALONE: partial(engine_alone, peer, *load),
                }
                cases[f"{tokens} tokens, {dtype}, HTTP"] = {OURS: partial(services, front.http_url, *load)}
        yield cases


if __name__ == "__main__":
    answer(partial(engine_peer, *sys.argv[1:]))
