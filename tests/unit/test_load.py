"""The load generator on fakes, with a clock that only the test moves; the workloads against both tokenizers."""

import asyncio
import json
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from references import mini_lm_path
from tokenizers import Tokenizer

from benchmarks.lengths import lognormal
from benchmarks.load.generator import LoadFailed, process_count, settled_tokens
from benchmarks.load.latency import PERCENTILES, Latencies
from benchmarks.load.loops import Window, closed_loop, open_loop, poisson_gaps
from benchmarks.load.outcome import Outcome
from benchmarks.load.pattern import Closed, Open
from benchmarks.load.plan import Plan, Prepared
from benchmarks.load.tally import OK, Reply, Tally
from benchmarks.load.target import EMBED, GrpcAddress, HttpAddress, opened
from benchmarks.sizes import CLIENT_COUNTS, PROMPTS, Scale
from benchmarks.workloads import Workload, build, names
from gpu_worker.models.synthetic import tokenizer
from selvage.v1 import embedding_pb2, ranking_pb2, usage_pb2
from shared.codec import duration_to_pb

ADDRESS = GrpcAddress(servers=("nowhere:1",), method=EMBED)


class Leap(selectors.DefaultSelector):
    """Does not wait: time leaps to the next thing that is due."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, for nothing that is due"
        self.now += timeout
        return super().select(0)


def in_fake_time(coroutine: Coroutine[Any, Any, None]) -> float:
    """Runs it to its end; returns how long that took by the fake clock, which starts at 1,000."""
    selector = Leap()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(coroutine)
    finally:
        loop.close()
    return selector.now - 1000.0


class FakeTarget:
    """Answers after `seconds(now)`; counts what came and how much of it was under way at once."""

    def __init__(self, seconds: Callable[[float], float], status: Callable[[int], str] = lambda index: OK) -> None:
        self._seconds, self._status = seconds, status
        self.came: Counter[int] = Counter()
        self.under_way = self.most = 0

    async def call(self, index: int, lane: int) -> Reply:
        self.came[index] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(self._seconds(asyncio.get_running_loop().time()))
        self.under_way -= 1
        return Reply(status=self._status(index), body=b"12")


def endless(requests: int) -> Iterator[int]:
    return cycle(range(requests))


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


@given(st.integers(1, 9), st.integers(1, 60))
def test_a_closed_loop_never_has_more_than_its_clients_under_way(clients: int, requests: int) -> None:
    """As many as clients where there are enough requests, and every request once."""
    target, tally = FakeTarget(lambda now: 0.1), Tally(["all"] * requests)
    window = Window(begin=1000.0, start=1000.0)
    in_fake_time(closed_loop(target, iter(range(requests)), tally, range(clients), window))
    assert target.most == min(clients, requests)
    assert target.came == tally.answers == Counter(range(requests))


def test_a_closed_loop_counts_by_the_time_of_the_answer() -> None:
    """What was answered in the warm-up or after the window is sent and awaited, but does not count."""
    target, tally = FakeTarget(lambda now: 0.4), Tally(["all"] * 3)
    window = Window(begin=1000.0, start=1001.0, stop=1003.0)
    took = in_fake_time(closed_loop(target, endless(3), tally, [0, 1], window))
    assert took == pytest.approx(3.2)
    assert tally.answers.total() == 2 * 5  # at 1.2, 1.6, 2.0, 2.4 and 2.8
    assert tally.outside == 2 * 3  # at 0.4, 0.8 and 3.2
    assert tally.calls == target.came.total() == 16
    assert (tally.before, tally.last) == pytest.approx((1000.8, 1002.8))


def test_a_closed_loop_hides_a_stall_and_an_open_one_does_not() -> None:
    """A server that stalls for two of ten seconds: one client sends once in the stall, 100 a second are due."""

    def stalling(now: float) -> float:
        return max(0.001, 1006.0 - now if 1004.0 <= now < 1006.0 else 0.0)

    window = Window(begin=1000.0, start=1000.0, stop=1010.0)
    closed, opened_ = Tally(["all"]), Tally(["all"])
    in_fake_time(closed_loop(FakeTarget(stalling), endless(1), closed, [0], window))
    in_fake_time(open_loop(FakeTarget(stalling), endless(1), opened_, poisson_gaps(100.0, "1"), window))
    assert closed.latencies["all"].milliseconds()["p99.9"] < 2
    felt = opened_.latencies["all"].milliseconds()
    assert felt["p50"] < 2
    assert felt["p95"] > 1000
    assert felt["p99"] > 1800


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    """A generator that is held up itself for a second sends late, and says so in both figures."""

    async def held_up() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(1000.5, lambda: setattr(loop._selector, "now", 1001.5))  # type: ignore[attr-defined]
        await open_loop(target, iter(range(20)), tally, cycle([0.1]), Window(begin=1000.0, start=1000.0))

    target, tally = FakeTarget(lambda now: 0.001), Tally(["all"] * 20)
    in_fake_time(held_up())
    assert tally.answers == Counter(range(20))
    assert tally.lateness.milliseconds()["max"] == pytest.approx(1000, rel=0.11)
    assert tally.latencies["all"].milliseconds()["max"] == pytest.approx(1001, rel=0.11)
    assert tally.lateness.milliseconds()["p50"] < 1


def test_an_open_loop_waits_for_every_answer_that_counts() -> None:
    """Whatever was due in the window counts, though it is answered after it; what was due before does not."""
    target, tally = FakeTarget(lambda now: 5.0), Tally(["all"])
    window = Window(begin=1000.0, start=1001.0, stop=1003.0)
    took = in_fake_time(open_loop(target, endless(1), tally, cycle([0.25]), window))
    assert tally.answers.total() == 8
    assert tally.outside == 3
    assert took == pytest.approx(7.75)


def test_poisson_gaps_have_the_rate_and_the_spread_of_their_name() -> None:
    """Mean and standard deviation are both 1 / rate; the seed decides."""
    gaps = list(islice(poisson_gaps(50.0, "7"), 20_000))
    assert np.mean(gaps) == pytest.approx(0.02, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.02, rel=0.03)
    assert gaps == list(islice(poisson_gaps(50.0, "7"), 20_000))


def test_errors_count_by_status_and_flatter_no_latency() -> None:
    """Refusals are errors of their kind, have no latency, and cost no token."""
    statuses = ["OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]
    target, tally = FakeTarget(lambda now: 0.1, lambda index: statuses[index]), Tally(["all"] * 4)
    in_fake_time(closed_loop(target, iter(range(4)), tally, [0, 1], Window(begin=1000.0, start=1000.0)))
    assert tally.errors == {"UNAVAILABLE": 2, "RESOURCE_EXHAUSTED": 1}
    assert tally.answers == {0: 1}
    assert len(tally.latencies["all"]) == 1
    outcome = Outcome(seconds=2.0, window=2.0, tally=tally, tokens=dict.fromkeys(range(4), 10), cpu_seconds={})
    assert (outcome.requests, outcome.total_tokens, outcome.figures()["tokens_per_second"]) == (1, 10, 5)


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


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    """MiniLM's, and the synthetic one of the smallest and of a large shape."""
    mini = Tokenizer.from_file(f"{mini_lm_path()}/tokenizer.json")
    mini.no_truncation()
    mini.no_padding()
    return {"minilm": mini} | {
        name: Tokenizer.from_buffer(tokenizer(size).content) for name, size in (("tiny", 1000), ("random", 30_522))
    }


def counted(workload: Workload, read: Tokenizer) -> list[int]:
    """Tokens of each request, as the services count them: prompt and markers before the text, special ones around."""
    marker = "w1 " if "colbert" in workload.model else ""
    sums = []
    for request in workload.requests:
        message = request.message
        if isinstance(message, ranking_pb2.RerankRequest):
            texts = [marker + text for text in (message.query, *message.documents)]
        else:
            texts = [message.prompt + text for text in message.texts]
        sums.append(sum(len(encoding.ids) for encoding in read.encode_batch_fast(texts)))
    return sums


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", names())
def test_workloads_have_the_tokens_that_they_promise(name: str, scale: Scale, tokenizers: dict[str, Tokenizer]) -> None:
    """Exactly, special tokens included; only literal texts of real tokenizers promise nothing."""
    workload = build(name, scale=scale)
    kind = "minilm" if workload.model == "minilm" else "tiny" if "tiny" in workload.model else "random"
    promised = [request.tokens for request in workload.requests]
    if (name, scale) == ("instruct-burst", "small"):
        assert set(promised) == {None}
        assert 38 <= np.mean(counted(workload, tokenizers[kind])) <= 50
    else:
        assert promised == counted(workload, tokenizers[kind])


def test_synthetic_words_are_known_to_the_smallest_vocabulary(tokenizers: dict[str, Tokenizer]) -> None:
    """So every workload can be tried with a tiny shape."""
    for name in ("token-embed", "instruct-burst", "short", "mixed"):
        workload = build(name, model="random:tiny-bert")
        assert [request.tokens for request in workload.requests] == counted(workload, tokenizers["tiny"])
    late = build("colbert-rerank", model="random:tiny-colbert")
    assert [request.tokens for request in late.requests] == counted(late, tokenizers["tiny"])


@pytest.mark.parametrize("name", names())
def test_the_seed_decides_a_workload(name: str) -> None:
    """The same seed gives the same bytes; another seed other texts, unless the texts are literal."""
    first = [each.body for each in build(name, seed=3).prepared()]
    assert first == [each.body for each in build(name, seed=3).prepared()]
    literal = name in ("token-embed", "instruct-burst")
    assert (first == [each.body for each in build(name, seed=4).prepared()]) == literal


def test_workloads_have_the_patterns_of_the_issue() -> None:
    """Clients, counts, lengths."""
    patterns = {name: build(name, scale="full").pattern for name in names()}
    assert patterns["token-embed"].clients == 4
    assert patterns["instruct-burst"] == Closed(clients=PROMPTS, requests=PROMPTS)
    assert {patterns[name].clients for name in ("colbert-rerank", "short", "medium", "lognormal")} == {64}
    assert build("clients").client_counts == CLIENT_COUNTS == (1, 2, 4, 8, 16, 32, 64, 128)
    sizes = {name: build(name, scale="full").requests[0] for name in ("big-rerank", "bigger-rerank")}
    assert {name: len(each.message.documents) for name, each in sizes.items()} == {
        "big-rerank": 1000,
        "bigger-rerank": 10_000,
    }
    lengths = lognormal(256, 1).tolist()
    assert np.mean(lengths) == pytest.approx(126, rel=0.02)
    assert max(lengths) <= 512


def test_mixed_tells_short_from_long() -> None:
    """One long text to 31 short ones; each kind alone can be had."""
    workload = build("mixed")
    assert Counter(request.kind for request in workload.requests) == {"short": 124, "long": 4}
    assert {request.tokens for request in workload.only("short").requests} == {32}


def test_http_bodies_carry_the_same_texts() -> None:
    """OpenAI's and Jina's shapes."""
    embed, rerank = (build(name).prepared_http("a-model")[0].body for name in ("short", "colbert-rerank"))
    text = build("short").requests[0].message.texts[0]
    assert embed.decode() == f'{{"model": "a-model", "input": ["{text}"], "encoding_format": "base64"}}'
    assert b'"documents": ["' in rerank
    assert b'"top_n": 1' in rerank
