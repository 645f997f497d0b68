"""The load generator's latencies, tallies, patterns and targets."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.generator import LoadFailed, process_count, settled_tokens
from benchmarks.load.latency import PERCENTILES, Latencies
from benchmarks.load.pattern import Closed, Open
from benchmarks.load.plan import Plan, Prepared
from benchmarks.load.tally import OK, Reply, Tally
from benchmarks.load.target import EMBED, GrpcAddress, HttpAddress, opened
from selvage.v1 import embedding_pb2, usage_pb2
from shared.codec import duration_to_pb

ADDRESS = GrpcAddress(servers=("nowhere:1",), method=EMBED)


def percentile(values: np.ndarray, share: float) -> float:
    """The value of that rank, counted as HdrHistogram does: to the nearest."""
    return float(np.sort(values)[max(1, int(share / 100 * len(values) + 0.5)) - 1])


@given(st.lists(st.lists(st.floats(2e-6, 3000.0), min_size=1, max_size=200), min_size=1, max_size=4))
def test_percentiles_of_merged_histograms_are_those_of_all_latencies(processes: list[list[float]]) -> None:
    """Recorded apart, sent as text, added up: as if sorted together, within three digits."""
    merged = Latencies()
    for latencies in processes:
        own = Latencies()
        for latency in latencies:
            own.record(latency)
        merged.add(Latencies(own.encoded()))
    everything = np.concatenate([np.array(latencies) for latencies in processes]) * 1e3
    assert len(merged) == len(everything)
    expected = {f"p{share:g}": percentile(everything, share) for share in PERCENTILES} | {"max": everything.max()}
    assert merged.milliseconds() == pytest.approx(expected, rel=1.1e-3, abs=1.1e-3)


def test_latency_beyond_an_hour_is_kept_as_an_hour() -> None:
    """It is not lost, and does not end the run."""
    latencies = Latencies()
    latencies.record(1e6)
    assert latencies.milliseconds()["max"] == pytest.approx(3600e3, rel=1e-3)


def test_tallies_of_processes_add_up() -> None:
    """Through JSON, by request, status and kind."""
    kinds = ["short", "long"]
    merged = Tally(kinds)
    for process in range(3):
        tally = Tally(kinds)
        tally.count(0, Reply(status=OK, body=b"123"), 0.5, 10.0 + process)
        tally.count(1, Reply(status=OK, body=b"123"), 2.0, 11.0)
        tally.count(1, Reply(status="HTTP 503"), 0.1, 11.0)
        tally.pass_by(9.0 - process, before=True)
        merged.add(Tally.from_json(tally.to_json(), kinds))
    assert merged.answers == {0: 3, 1: 3}
    assert merged.errors == {"HTTP 503": 3}
    assert (merged.outside, merged.calls, merged.reply_bytes) == (3, 12, 18)
    assert (merged.before, merged.last) == (9.0, 12.0)
    assert {kind: len(each) for kind, each in merged.latencies.items()} == {"short": 3, "long": 3}


def test_the_times_that_answers_tell_are_kept_where_they_are_wanted() -> None:
    """Beside the latency of each answer with OK; read after the run, through JSON, of all processes."""
    timing = usage_pb2.Timing(queue=duration_to_pb(0.25), compute=duration_to_pb(0.5), postprocess=duration_to_pb(2e-9))
    body = embedding_pb2.EmbedResponse(timing=timing).SerializeToString()
    merged = Tally(["all"])
    for times in (True, False, True):
        tally = Tally(["all"], times)
        tally.count(0, Reply(status=OK, body=body), 1.5, 10.0)
        tally.count(0, Reply(status="UNAVAILABLE"), 0.1, 11.0)
        tally.read_times(ADDRESS.times)
        merged.add(Tally.from_json(json.loads(json.dumps(tally.to_json())), ["all"]))
    assert [tuple(each) for each in merged.times] == [(1.5, 0, 0.25, 0, 0.5, 2e-9)] * 2


@given(st.integers(1, 40), st.integers(1, 100), st.integers(1, 7), st.integers(1, 5))
def test_processes_share_clients_and_requests_without_rest(
    clients: int, requests: int, distinct: int, asked: int
) -> None:
    """All clients once, and in all as many requests as asked for, every one of the distinct ones in its turn."""
    pattern = Closed(clients=clients, requests=requests)
    plan = Plan(address=ADDRESS, requests=(Prepared(body=b""),) * distinct, pattern=pattern)
    parts = process_count(plan, asked)
    lanes = [lane for number in range(parts) for lane in pattern.lanes(number, parts)]
    assert sorted(lanes) == list(range(clients))
    sent = Counter(index for number in range(parts) for index in plan.turns(number, parts))
    assert sent == Counter(position % distinct for position in range(requests))


def test_rates_of_processes_add_up() -> None:
    """So do the numbers of requests."""
    parts = [Open(rate=30.0, requests=100).part(number, 4) for number in range(4)]
    assert sum(part.rate for part in parts) == 30.0
    assert sum(part.requests or 0 for part in parts) == 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: Closed(clients=1),
        lambda: Closed(clients=1, seconds=1, requests=1),
        lambda: Closed(clients=0, seconds=1),
        lambda: Closed(clients=1, seconds=0),
        lambda: Open(rate=0, seconds=1),
        lambda: Open(rate=1, requests=0),
    ],
)
def test_a_pattern_that_cannot_be_run_cannot_be_built(make: Callable[[], object]) -> None:
    """It says so at once."""
    with pytest.raises(ValueError, match=r"."):
        make()


def test_a_promise_of_tokens_is_held_against_our_own_services() -> None:
    """Other counts than promised end the run; peers' counts are not believed over a promise."""
    plan = Plan(
        address=ADDRESS,
        requests=(Prepared(body=b"", tokens=32), Prepared(body=b"")),
        pattern=Closed(clients=1, requests=1),
    )
    assert settled_tokens(plan, {0: 32, 1: 7}) == {0: 32, 1: 7}
    with pytest.raises(LoadFailed, match="made to have 32 tokens, the server counted 33"):
        settled_tokens(plan, {0: 33})
    peer = replace(plan, address=HttpAddress(servers=("http://nowhere",)))
    assert settled_tokens(peer, {0: 180, 1: 0}) == {0: 32}


async def test_a_grpc_target_sends_and_receives_bytes() -> None:
    """The very request; the very reply; a status where there is none; lanes choose the server."""
    reply = embedding_pb2.EmbedResponse(usage=usage_pb2.Usage(prompt_tokens=9)).SerializeToString()
    asked: list[tuple[int, bytes]] = []

    async def serve(number: int) -> tuple[grpc.aio.Server, int]:
        async def answer(request: bytes, context: Any) -> bytes:
            asked.append((number, request))
            if request == b"refuse":
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")
            return reply

        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        rpcs = grpc.method_handlers_generic_handler("selvage.v1.EmbeddingService", {"Embed": handler})
        server.add_generic_rpc_handlers((rpcs,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    servers = [await serve(number) for number in range(2)]
    address = GrpcAddress(servers=tuple(f"127.0.0.1:{port}" for _, port in servers), method=EMBED)
    async with opened(address, [b"first", b"refuse"], timeout=30) as target:
        answered = await target.call(0, lane=3)
        assert answered == Reply(status=OK, body=reply)
        assert await target.call(1, lane=2) == Reply(status="RESOURCE_EXHAUSTED")
    assert asked == [(1, b"first"), (0, b"refuse")]
    assert address.tokens(answered.body) == 9
    for server, _ in servers:
        await server.stop(None)


async def test_an_http_target_posts_json_and_tells_statuses() -> None:
    """Tokens where the reply has them; a status by number; a server that is not there by the error's name."""

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        status = 503 if asked == "refuse" else 200
        return web.json_response({"usage": {"prompt_tokens": 5}}, status=status)

    application = web.Application()
    application.router.add_post("/embeddings", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = HttpAddress(servers=("http://{}:{}/embeddings".format(*runner.addresses[0][:2]),))
    async with opened(address, [b'"first"', b'"refuse"'], timeout=30) as target:
        answered = await target.call(0, lane=0)
        assert (answered.status, address.tokens(answered.body)) == (OK, 5)
        assert (await target.call(1, lane=0)).status == "HTTP 503"
    await runner.cleanup()
    async with opened(address, [b""], timeout=30) as target:
        assert (await target.call(0, lane=0)).status == "ClientConnectorError"
    assert address.tokens(b'{"data": []}') == address.tokens(b"[1, 2]") == 0
