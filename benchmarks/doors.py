"""What each door costs: 64 callers of 16 tokens through each, then 2,000 texts of one caller as a list and as streams.

One pair, whose doors are all open. Clients are a process of their own on the same cores, with messages made beforehand;
`times gRPC's CPU` is the frontend's a request, in each round. Of the 2,000 texts, `own stream` sends 64 a message,
`tei.v1 stream` one, and Haystack is the released client, whose own CPU seconds are told (`make clients`).
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grpc

from benchmarks.benchmark import OURS, Options
from benchmarks.load.target import TEI
from benchmarks.machine import ROOT
from benchmarks.rounds import Figures, Turn
from benchmarks.services import SHORT, Server, generated, pair
from selvage import Client
from selvage.v1 import embedding_pb2, embedding_pb2_grpc
from shared.rpc import channel_options
from tei.v1 import tei_pb2, tei_pb2_grpc

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("requests/s", "s")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS = 64
CPU, OVER = "frontend: CPU ms/request", "times gRPC's CPU"
TEXTS = [f"the quiet harbour lies still and boats rest number {number} " * (1 + number % 3) for number in range(2000)]
HAYSTACK = ROOT / ".venv-clients" / "haystack" / "bin" / "python"
PROGRAM = ROOT / "tests" / "clients" / "haystack_client.py"


def through(server: Server, seconds: float, address: str, encoding: str = "base64") -> Figures:
    """Closed callers of one door."""
    door = Server(address=address, pids=server.pids)
    found = generated(door, SHORT, clients=CLIENTS, seconds=seconds, encoding=encoding)
    kept = ("requests/s", "p50 ms", CPU, "frontend's event loop: CPU ms/request", "clients: CPU ms/request")
    return {name: found[name] for name in kept}


def timed(asks: Callable[[], int]) -> Figures:
    """Seconds of all texts by one caller."""
    start = time.perf_counter()
    count = asks()
    assert count == len(TEXTS)
    return {"s": time.perf_counter() - start}


def haystack(address: str) -> Figures:
    """The released client, in its own process; loading it does not count."""
    asked = {"does": "timed", "address": address, "texts": TEXTS, "options": {"runs": 1}}
    told = subprocess.run(
        [HAYSTACK, "-I", PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={"HAYSTACK_TELEMETRY_ENABLED": "False"},
    )
    found = json.loads(told.stdout)
    return {"s": found["seconds"][0], "clients: CPU s": found["cpu"][0]}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """All doors of one pair."""
    with ExitStack() as cleanup:
        server = cleanup.enter_context(pair(ROOT, options.threads, http=True))
        channel = cleanup.enter_context(grpc.insecure_channel(server.address, options=channel_options()))
        client = cleanup.enter_context(Client(server.address, timeout=300))
        embed: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel).Embed
        stream: Any = tei_pb2_grpc.EmbedStub(channel).EmbedStream

        def one_call() -> int:
            reply: embedding_pb2.EmbedResponse = embed(embedding_pb2.EmbedRequest(texts=TEXTS), timeout=300)
            return reply.dense.count

        def a_text_a_message() -> int:
            return sum(1 for _ in stream((tei_pb2.EmbedRequest(inputs=each) for each in TEXTS), timeout=300))

        url = f"{server.http}/v1"
        many: dict[str, Turn] = {
            OURS: partial(through, server, options.seconds, server.address),
            "tei.v1": partial(through, server, options.seconds, TEI + server.address),
            "HTTP, base64": partial(through, server, options.seconds, url),
            "HTTP, float": partial(through, server, options.seconds, url, "float"),
        }
        one: dict[str, Turn] = {
            OURS: partial(timed, one_call),
            "own stream": partial(timed, lambda: sum(1 for _ in client.embed_stream(TEXTS))),
            "tei.v1 stream": partial(timed, a_text_a_message),
        }
        if HAYSTACK.is_file():
            one["Haystack, one stream"] = partial(haystack, server.address)
        yield {f"{CLIENTS} clients, 16 tokens": many, f"1 client, {len(TEXTS):,} texts": one}


def finished(sides: Mapping[str, Sequence[Figures]]) -> dict[str, Sequence[Figures]]:
    """With the frontend's CPU a request over that of gRPC, round by round."""
    if CPU not in sides[OURS][0]:
        return dict(sides)
    return {
        side: [{**own, OVER: own[CPU] / ours[CPU]} for own, ours in zip(rounds, sides[OURS], strict=True)]
        for side, rounds in sides.items()
    }
