"""Headers of W3C Trace Context: which are taken, which are ignored, and how far they travel."""

import asyncio

import pytest

from shared.caller import TERMS, Caller, RequestTerms, caller_of, valid_traceparent
from shared.jobs import Classify, Job, RaggedTokens
from shared.link_codec import jobs_from_pb, jobs_to_pb
from shared.server.calls import Calls

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        *((header, GOOD) for header in (GOOD, f" {GOOD} ", f"01-{TRACE}-{SPAN}-01")),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-adds", GOOD),
        *((header, "") for header in ("", "not a header", GOOD.upper(), GOOD[:-1], f"{GOOD}-more")),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE}-{SPAN}-01\nforged log line", ""),
    ],
)
def test_a_valid_header_is_written_as_version_00_and_any_other_ignored(header: str, taken: str) -> None:
    assert valid_traceparent(header) == taken


def calling(*headers: tuple[str, str]) -> Caller:
    return caller_of("m", "id", headers, host="ipv4:10.0.0.7", remaining=None)


def test_the_caller_has_its_trace() -> None:
    caller = calling(("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2"))
    assert (caller.traceparent, caller.tracestate) == (GOOD, "a=1,b=2")


@pytest.mark.parametrize("state", ["a=1", "x" * 513])
def test_a_state_without_a_trace_is_nothing(state: str) -> None:
    assert calling(("traceparent", "bad"), ("tracestate", state)).tracestate == ""
    assert calling(("traceparent", GOOD), ("tracestate", "x" * 513)).tracestate == ""


async def test_a_call_passes_its_trace_on() -> None:
    """To what is asked on its behalf, and to no later call."""
    calls, seen = Calls(timeout=60), list[RequestTerms]()

    async def one(given: str) -> None:
        caller = Caller(method="m", request_id="id", traceparent=given)

        async def work() -> None:
            await asyncio.sleep(0)
            seen.append(TERMS.get())

        await calls.answer(caller, work)

    await asyncio.gather(one(GOOD), one(""))
    await one("")
    assert [terms.traceparent for terms in seen] == [GOOD, "", ""]


@pytest.mark.parametrize(("sent", "taken"), [(GOOD, GOOD), ("", ""), ("forged\nline", "")])
def test_a_job_carries_it_to_the_worker(sent: str, taken: str) -> None:
    """Which looks again, since it stands in its log."""
    job = Job(id=1, work=Classify(), tokens=RaggedTokens.of([[1, 2]]), traceparent=sent)
    [(_, arrived)] = jobs_from_pb(jobs_to_pb([job], "fingerprint"))
    assert isinstance(arrived, Job)
    assert arrived.traceparent == taken
