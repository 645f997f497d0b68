"""The generator's own processes against null servers in theirs."""

from collections import Counter

import pytest

from benchmarks.load.ceiling import ceiling_of
from benchmarks.load.generator import LoadFailed, generate
from benchmarks.load.null_server import null_server
from benchmarks.load.pattern import Closed, Open
from benchmarks.load.plan import Plan, Prepared
from benchmarks.load.target import EMBED, Address, GrpcAddress, HttpAddress

REQUESTS = tuple(Prepared(body=b"%d" % number, tokens=number, kind="ab"[number % 2]) for number in range(7))


@pytest.mark.parametrize("http", [False, True])
async def test_every_request_is_sent_and_counted_once(http: bool) -> None:
    """By three processes together, with tokens, bytes and CPU seconds of all of them."""
    asked: Address = GrpcAddress(servers=("",), method=EMBED)
    if http:
        asked = HttpAddress(servers=("http://nowhere/embeddings",))
    async with null_server(asked, 10) as (address, pid):
        plan = Plan(address=address, requests=REQUESTS, pattern=Closed(clients=5, requests=50), learn=False, warmup=0.1)
        outcome = await generate(plan, processes=3, watch={"null server": pid})
    expected = Counter(position % 7 for position in range(50))
    assert outcome.tally.answers == expected
    assert outcome.total_tokens == sum(index * times for index, times in expected.items())
    assert outcome.mean_reply_bytes == 10
    assert {kind: len(each) for kind, each in outcome.tally.latencies.items()} == {"a": 29, "b": 21}
    assert outcome.tally.errors == {}
    assert set(outcome.cpu_seconds) == {"client 0", "client 1", "client 2", "null server"}


async def test_the_ceiling_is_measured_in_a_closed_loop_with_replies_of_the_same_size() -> None:
    """Whatever the plan's own pattern is."""
    async with null_server(GrpcAddress(servers=("",), method=EMBED), 1000) as (address, _):
        plan = Plan(address=address, requests=REQUESTS, pattern=Open(rate=40, requests=20), learn=False, warmup=0.0)
        measured = await generate(plan, processes=2)
    assert measured.requests == 20
    assert len(measured.tally.lateness) == 20
    ceiling = await ceiling_of(plan, measured, seconds=0.3, processes=2, clients=4)
    assert ceiling.outcome.mean_reply_bytes == 1000
    assert ceiling.times == ceiling.outcome.requests_per_second / measured.requests_per_second


async def test_a_server_that_is_not_there_ends_the_run() -> None:
    """With the status that the first request got, before anything is measured."""
    address = GrpcAddress(servers=("127.0.0.1:1",), method=EMBED)
    plan = Plan(address=address, requests=REQUESTS, pattern=Closed(clients=2, seconds=1.0))
    with pytest.raises(LoadFailed, match="answered with UNAVAILABLE before the run began"):
        await generate(plan, processes=2)
