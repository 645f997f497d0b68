"""What a process accepts at once: requests, streams, bytes, and messages that arrive."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from shared.caller import Caller, Quota
from shared.errors import DeadlineExceeded, Overloaded, Unauthenticated
from shared.server import calls as calls_module
from shared.server.admission import Admission, Bounds, Reads
from shared.server.calls import Calls
from support.references import eventually

CALLER = Caller(method="m", request_id="id", key="k")


async def test_requests_results_and_replies_share_one_budget() -> None:
    admission = Admission(Bounds(size=100))
    with admission.request(), admission.hold(30):
        admission.reserve(30)
        assert (admission.size, admission.reserved, admission.message_size) == (60, 30, 30)
        read = admission.hold_reply(40)
        assert (admission.size, admission.reserved) == (70, 0)  # the reply is what the results became
    assert admission.size == 40
    full = pytest.raises(Overloaded, match="the request needs 61 bytes, others hold 40, the limit is 100")
    with full, admission.hold(61):
        raise AssertionError("not reached")
    with admission.hold(60), pytest.raises(Overloaded):
        admission.hold_reply(2)
    read()
    assert (admission.size, admission.refused["bytes"]) == (0, 2)


async def test_a_reply_that_takes_no_more_than_was_reserved_is_never_refused() -> None:
    """Streams count replies that they cannot refuse, so that more may be held than the budget has."""
    admission = Admission(Bounds(size=100))
    with admission.request():
        admission.reserve(50)
        admission.budget.change(0, 80)
        read = admission.hold_reply(50)
        with pytest.raises(Overloaded):
            admission.reserve(2)
    read()
    assert admission.size == 80


async def test_one_request_is_always_accepted_with_its_result_and_reply() -> None:
    admission = Admission(Bounds(size=100))
    with admission.request(), admission.hold(1000):
        admission.reserve(1000)
        read = admission.hold_reply(1000)
    read()

    async def another() -> None:
        with admission.request(), pytest.raises(Overloaded):
            admission.reserve(2)

    with admission.request(), admission.hold(1000):
        await asyncio.create_task(another())
    assert admission.size == 0


async def test_a_large_request_refuses_no_small_one() -> None:
    """Up to a 64th of the budget is small; small ones have a quarter more, which no large one takes."""
    admission = Admission(Bounds(size=6400))
    with ExitStack() as held:
        held.enter_context(admission.hold(100_000))
        with pytest.raises(Overloaded), admission.hold(101):
            raise AssertionError("not reached")
        for _ in range(16):
            held.enter_context(admission.hold(100))
        with pytest.raises(Overloaded), admission.hold(1):
            raise AssertionError("not reached")
    assert (admission.size, admission.budget.of_small) == (0, 0)


async def test_what_a_stream_holds_for_a_request_is_not_held_by_others() -> None:
    """Its message, which is there before the request is admitted."""
    admission = Admission(Bounds(size=100))
    with admission.hold(50), admission.request():
        admission.reserve(1000)
        assert admission.size == 1050
    assert admission.size == 0


async def test_a_message_in_parts_is_counted_as_it_comes() -> None:
    admission = Admission(Bounds(size=100))
    with admission.hold(50):
        with admission.holding() as holding:
            for _ in range(5):
                holding.add(10)
            with pytest.raises(Overloaded):
                holding.add(1)
        assert admission.size == 50


async def test_requests_and_streams_have_places() -> None:
    admission = Admission(Bounds(requests=1, streams=1, health=1))
    with admission.request(), admission.stream(), admission.stream(watch=True), admission.check():
        for place in (admission.request(), admission.stream(), admission.stream(watch=True), admission.check()):
            with pytest.raises(Overloaded, match="the limit is 1"), place:
                raise AssertionError("not reached")
    assert {reason: count for reason, count in admission.refused.items() if count} == {
        "requests": 1,
        "streams": 1,
        "health": 2,
    }
    with admission.request(), admission.stream():
        assert (admission.requests, admission.streams) == (1, 1)


async def test_a_slow_message_holds_up_nobody_until_there_are_too_many() -> None:
    admission = Admission(Bounds(slow_reads=2))
    reads, arrived = admission.reads, asyncio.Event()

    async def slowly() -> bytes:
        await arrived.wait()
        return b"slow"

    async def at_once() -> bytes:
        return b"quick"

    slow = [asyncio.create_task(reads.read(slowly)) for _ in range(2)]
    await eventually(lambda: reads.slow == 2)
    assert await reads.read(at_once) == b"quick"
    with pytest.raises(Overloaded, match="2 requests are arriving slowly, the limit is 2"):
        await reads.read(slowly)
    arrived.set()
    assert [await read for read in slow] == [b"slow"] * 2
    assert (reads.slow, admission.refused["slow_reads"]) == (0, 1)


async def test_a_message_must_arrive_in_time() -> None:
    admission, never = Admission(Bounds(read_seconds=0.05)), asyncio.Event()
    with pytest.raises(DeadlineExceeded, match=r"did not arrive within 0\.05 s"):
        await admission.reads.read(never.wait)
    assert (admission.reads.slow, admission.refused["read_seconds"]) == (1, 1)  # it is there until its call ends
    never.set()
    await eventually(lambda: admission.reads.slow == 0)


async def test_a_read_whose_caller_has_gone_is_not_cancelled() -> None:
    """grpcio would not free what has arrived of a message."""
    reads, arrived, taken = Reads(Bounds(), Admission(Bounds()).refusals, 1), asyncio.Event(), list[bytes]()

    async def receive() -> bytes:
        await arrived.wait()
        taken.append(b"message")
        return b"message"

    reading = asyncio.create_task(reads.read(receive))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    arrived.set()
    await eventually(lambda: taken == [b"message"])


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_key_has_no_more_streams_than_its_limit(limit: int) -> None:
    caller = Caller(method="m", request_id="id", key="k", quota=Quota(1), stream_quota=Quota(limit))
    calls = Calls(timeout=600, identify=lambda caller: caller)
    with ExitStack() as streams:
        for _ in range(limit):
            streams.enter_context(calls.stream(caller))
        for _ in range(2):
            with pytest.raises(Overloaded, match=f"this API key has {limit} open streams, the limit is {limit}"):
                streams.enter_context(calls.stream(caller))
        with calls.running(caller):
            pass
    assert calls.admission.refused["quota"] == 2


async def test_a_caller_that_is_no_longer_accepted_loses_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whatever they wait for, with its reason; those of others go on."""
    monkeypatch.setattr(calls_module, "ACCEPT_SECONDS", 0.01)
    revoked = set[str]()
    calls = Calls(timeout=600, identify=lambda caller: caller, accepts=lambda caller: caller.key not in revoked)
    opened = [asyncio.Event() for _ in range(2)]
    over = asyncio.Event()

    async def stream(key: str, place: int) -> str:
        try:
            with calls.stream(Caller(method="m", request_id="id", key=key)):
                opened[place].set()
                await over.wait()
        except Unauthenticated as error:
            return f"{error.field}: {error.message}"
        return "ended by itself"

    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(stream(key, place)) for place, key in enumerate(("bad", "good"))
    ]
    await asyncio.gather(*(event.wait() for event in opened))
    revoked.add("bad")
    assert await tasks[0] == "authorization: the API key is no longer known"
    over.set()
    assert await tasks[1] == "ended by itself"
    assert calls.admission.refused["unauthenticated"] == 1
