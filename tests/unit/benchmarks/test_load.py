"""The load generator: loops by a clock that only the test moves, and what counts."""

import asyncio
from collections.abc import Sequence
from itertools import cycle, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import loops
from benchmarks.load.generator import Load, Window, drive, measured
from benchmarks.load.loops import REFUSED, Call, LoadFailed
from benchmarks.load.processor import CpuSeconds
from benchmarks.servers import Server, generated
from benchmarks.workloads import Workload
from support.load_fakes import FakeTarget, fake_server, in_fake_time

TEXTS = Workload(name="texts", says="texts", model="minilm", requests=((16,),) * 4)


@given(st.integers(1, 9), st.integers(1, 60))
def test_a_closed_loop_never_has_more_than_its_clients_under_way(clients: int, requests: int) -> None:
    target = FakeTarget(0.1)
    calls = in_fake_time(loops.closed(target, iter(range(requests)), clients, float("inf")))
    assert target.most == min(clients, requests)
    assert sorted(call.request for call in calls) == list(range(requests))


def test_who_is_refused_waits_a_moment() -> None:
    """A caller that is refused at once does not ask a thousand times a second; one that is answered does."""
    for status, expected in ((REFUSED, 3), ("OK", 100)):
        calls = in_fake_time(loops.closed(FakeTarget(0.01, status), cycle([0]), 1, 1001.0))
        assert len(calls) == pytest.approx(expected, abs=1)


def test_an_open_loop_sends_at_the_rate_whatever_the_answers_do() -> None:
    """Every answer takes ten seconds; none holds a request back, and each is timed from when it was due."""
    target = FakeTarget(10.0)
    calls = in_fake_time(loops.opened(target, cycle([0]), repeat(1 / 20), 1002.01))
    assert [call.due for call in calls] == pytest.approx([1000 + number / 20 for number in range(1, 41)])
    assert {round(call.ended - call.due, 6) for call in calls} == {10.0}


def calls_of(*ended: float, status: str = "OK") -> list[Call]:
    """Each was due half a second before."""
    return [Call(due=end - 0.5, ended=end, status=status, request=0) for end in ended]


def test_a_closed_loop_counts_from_the_last_answer_before_the_window_to_the_last_in_it() -> None:
    """So that answers in bursts give the true rate, eight a second here; an open loop's window is all of it."""
    calls = calls_of(*[number / 2 for number in range(9) for _ in range(4)])
    inside, seconds = loops.counted(calls, 1.1, 2.5)
    assert len(inside) / seconds == 8
    inside, seconds = loops.counted(calls, 1.1, 2.5, is_open=True)
    assert ({call.due for call in inside}, seconds) == ({1.5, 2.0}, pytest.approx(1.4))


def test_goodput_is_what_kept_its_deadline_and_refusals_have_latencies_of_their_own() -> None:
    """Of four a second in two seconds."""
    late = [Call(due=0.0, ended=3.0, status="OK", request=1)]
    calls = calls_of(1, 1, 1, 1) + late + calls_of(1, status=loops.REFUSED) + calls_of(1, status=loops.EXPIRED)
    figures = loops.figures(calls + calls_of(1, status="INTERNAL"), 2.0, [16, 32], deadline=1.0)
    rates = {name: value for name, value in figures.items() if name.endswith("/s")}
    served = {"requests/s": 2.5, "tokens/s": 48, "goodput/s": 2}
    assert rates == served | {"refused/s": 0.5, "expired/s": 0.5, "failed/s": 0.5}
    assert figures["refused p99 ms"] == 500
    assert figures["p50 ms"] == 500
    assert figures["p99 ms"] == pytest.approx(2900)


def window(*calls: Sequence[Call]) -> Window:
    spent = {"worker": CpuSeconds(whole=4.0, event_loop=0.0, grpc=0.0)}
    return Window(calls=calls, spent=spent, start=10.0, stop=14.0)


def figures_of(load: Load, *calls: Sequence[Call]) -> dict[str, float]:
    figures: dict[str, float] = measured(load, window(*calls))["figures"]
    return figures


def test_figures_are_of_the_measured_load_and_what_runs_beside_has_its_own() -> None:
    """CPU is of everything, over the measured requests."""
    load = Load(address="", workload=TEXTS, beside=Load(address="", workload=TEXTS))
    figures = figures_of(load, calls_of(9, 10, 11, 12, 13, 14.5), calls_of(9, 12))
    assert figures["requests/s"] == 1
    assert figures["beside: requests/s"] == pytest.approx(1 / 3)
    assert figures["worker: CPU ms/request"] == 1000
    with pytest.raises(LoadFailed, match="texts: no answer in the window"):
        figures_of(load, calls_of(9), calls_of(11))


def test_a_call_that_outlasts_the_window_counts_where_the_slowest_are_measured() -> None:
    """It is the slowest, and perhaps the only one; elsewhere it counts where no other does."""
    slow, load = Call(due=9.5, ended=20.0, status="OK", request=0), Load(address="", workload=TEXTS)
    slowest: Any = Load(address="", workload=TEXTS, slowest=True)
    assert figures_of(load, [slow])["p99 ms"] == 10_500
    assert (
        figures_of(slowest, [slow, *calls_of(11)])["p99 ms"]
        > 10_000
        > figures_of(load, [slow, *calls_of(11)])["p99 ms"]
    )


async def test_every_call_is_counted_once_by_its_status() -> None:
    """One in four is refused, one in four too late; in a process of its own too. Where a server counts other tokens
    than the texts were made of, nothing is measured."""
    statuses = ("OK", "RESOURCE_EXHAUSTED", "late", "OK")
    async with fake_server(lambda number: statuses[(number - 1) % 4] if number else "OK") as address:
        outcome = await drive(Load(address=address, workload=TEXTS, clients=3, requests=40, deadline=600))
    assert outcome["statuses"] == {"OK": 20, "RESOURCE_EXHAUSTED": 10, "DEADLINE_EXCEEDED": 10}
    figures = outcome["figures"]
    assert figures["refused/s"] == pytest.approx(figures["requests/s"] / 2)
    assert figures["expired/s"] == pytest.approx(figures["requests/s"] / 2)
    assert figures["tokens/s"] == pytest.approx(16 * figures["requests/s"])
    assert figures["clients: CPU ms/request"] >= 0
    async with fake_server(lambda number: "OK") as address:
        own = await asyncio.to_thread(generated, Server(address=address, pids={}), TEXTS, requests=4)
    assert own["requests/s"] > 0
    async with fake_server(lambda number: "OK", tokens=17) as address:
        with pytest.raises(LoadFailed, match="made of 16 tokens, the server counted 17"):
            await drive(Load(address=address, workload=TEXTS, requests=4))
