"""What holds for every call, whatever door it came through."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.caller import Caller
from shared.errors import DeadlineExceeded, Internal, WorkerUnavailable
from shared.server.calls import SLACK, Calls

CALLER = Caller(method="Embed", request_id="id")


async def raising(error: Exception) -> None:
    raise error


async def test_an_answer_is_what_work_returns() -> None:
    """And one line tells of it, without a reason."""

    async def work() -> int:
        return 7

    with capture_logs() as lines:
        assert await Calls(timeout=60).answer(CALLER, work) == 7
    (line,) = lines
    assert (line["event"], line["method"], line["code"]) == ("call", "Embed", "OK")
    assert "reason" not in line


async def test_a_bug_is_logged_and_not_told() -> None:
    """Its trace stands in the log; the caller gets INTERNAL without a word of it."""
    with capture_logs() as lines, pytest.raises(Internal) as raised:
        await Calls(timeout=60).answer(CALLER, lambda: raising(KeyError("secret")))
    assert "secret" not in str(raised.value)
    assert [line["event"] for line in lines] == ["bug", "call"]
    assert isinstance(lines[0]["exc_info"], KeyError)


@pytest.mark.parametrize("remaining", [None, -SLACK])
async def test_time_that_is_over_has_a_name(remaining: float | None) -> None:
    with pytest.raises(DeadlineExceeded, match="no deadline" if remaining is None else "outlasted its deadline"):
        await Calls(timeout=0).answer(Caller(method="", request_id="", remaining=remaining), asyncio.Event().wait)


async def test_without_a_timeout_calls_take_as_long_as_they_take() -> None:
    """As in the worker, where the deadline of a job bounds it, not that of a call."""
    caller = Caller(method="", request_id="", remaining=-SLACK)

    async def work() -> str:
        for _ in range(10):
            await asyncio.sleep(0)
        return "done"

    assert await Calls(timeout=None).answer(caller, work) == "done"


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("/selvage.v1.ModelService/Tokenize", True),
        ("POST /tokenize", True),
        ("POST /tokenize/more", False),
        ("/selvage.v1.EmbeddingService/Embed", False),
    ],
)
async def test_what_needs_no_worker_is_not_refused_for_want_of_one(method: str, passes: bool) -> None:
    """Whole services of gRPC, and single routes of HTTP."""

    def refuse(_: Any) -> None:
        raise WorkerUnavailable("no worker")

    async def work() -> str:
        return "done"

    calls = Calls(timeout=60, check=refuse)
    calls.local_services, calls.local_methods = ("/selvage.v1.ModelService/",), frozenset({"POST /tokenize"})
    with nullcontext() if passes else pytest.raises(WorkerUnavailable):
        assert await calls.answer(Caller(method=method, request_id=""), work) == "done"


async def test_a_cancelled_call_is_counted_and_logged_as_such() -> None:
    """Nothing runs any more, and the line says why."""
    calls = Calls(timeout=60)
    with capture_logs() as lines:
        running = asyncio.ensure_future(calls.answer(CALLER, asyncio.Event().wait))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        await calls.idle()
    assert running.cancelled()
    assert [line["code"] for line in lines] == ["CANCELLED"]
