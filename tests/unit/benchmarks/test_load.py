"""The load generator: loops by a clock that only the test moves, and counts against a fake server."""

from itertools import cycle, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import loops, outcome
from benchmarks.load.generator import Load, drive
from benchmarks.load.loops import REFUSED, Call
from benchmarks.load.outcome import LoadFailed
from benchmarks.workloads import Workload
from support.load_fakes import FakeTarget, fake_server, in_fake_time


@given(st.integers(1, 9), st.integers(1, 60))
def test_a_closed_loop_never_has_more_than_its_clients_under_way(clients: int, requests: int) -> None:
    """As many as clients where there are enough requests, and every request once."""
    target = FakeTarget(0.1)
    calls = in_fake_time(loops.closed(target, iter(range(requests)), [()], clients, float("inf")))
    assert target.most == min(clients, requests)
    assert sorted(each.request for each in calls) == list(range(requests))


def test_who_is_refused_waits_a_moment() -> None:
    """A caller that is refused at once does not ask a thousand times a second; one that is answered does."""
    for status, expected in ((REFUSED, 3), ("OK", 100)):
        calls = in_fake_time(loops.closed(FakeTarget(0.01, status), cycle([0]), [()], 1, 1001.0))
        assert len(calls) == pytest.approx(expected, abs=1)


def test_an_open_loop_sends_at_the_rate_whatever_the_answers_do() -> None:
    """Every answer takes ten seconds; none holds a request back, and each is timed from when it was due."""
    target = FakeTarget(10.0)
    calls = in_fake_time(loops.opened(target, cycle([0]), [()], repeat(1 / 20), 1002.01))
    assert [each.due for each in calls] == pytest.approx([1000 + number / 20 for number in range(1, 41)])
    assert {round(each.ended - each.due, 6) for each in calls} == {10.0}


def test_each_sender_has_its_share_of_the_calls() -> None:
    """Keys by weight, priorities in turn, every key with each of them; figures of each apart."""
    senders = loops.senders("greedy:3,modest", "0,1")
    greedy, urgent = ("selvage-key", "greedy"), ("selvage-priority", "1")
    assert len(senders) == len(set(enumerate(senders))) == 8
    assert (sum(greedy in each for each in senders), sum(urgent in each for each in senders)) == (6, 4)
    assert sum(greedy in each and urgent in each for each in senders) == 3
    assert loops.senders("", "") == [()]
    calls = in_fake_time(loops.closed(FakeTarget(0.1), iter(range(80)), senders, 8, float("inf")))
    told = outcome.by_sender(calls, 1.0, [16] * 80)
    assert {name: each["requests/s"] for name, each in told.items()} == {
        "selvage-key greedy selvage-priority 0": 30,
        "selvage-key greedy selvage-priority 1": 30,
        "selvage-key modest selvage-priority 0": 10,
        "selvage-key modest selvage-priority 1": 10,
    }
    assert outcome.by_sender(calls_of(1, 2), 1.0, [16]) == {}


def calls_of(*ended: float, status: str = "OK") -> list[Call]:
    """Each was due half a second before."""
    return [Call(due=each - 0.5, ended=each, status=status, request=0) for each in ended]


def test_a_closed_loop_counts_from_the_last_answer_before_the_window_to_the_last_in_it() -> None:
    """So that answers in bursts give the true rate, eight a second here; an open loop's window is all of it."""
    calls = calls_of(*[each / 2 for each in range(9) for _ in range(4)])
    inside, seconds = outcome.counted(calls, 1.1, 2.5, is_open=False)
    assert len(inside) / seconds == 8
    inside, seconds = outcome.counted(calls, 1.1, 2.5, is_open=True)
    assert ({each.due for each in inside}, seconds) == ({1.5, 2.0}, pytest.approx(1.4))


def test_goodput_is_what_kept_its_deadline_and_refusals_have_latencies_of_their_own() -> None:
    late = [Call(due=0.0, ended=3.0, status="OK", request=1)]
    calls = calls_of(1, 1, 1, 1) + late + calls_of(1, status=outcome.REFUSED) + calls_of(1, status=outcome.EXPIRED)
    found = outcome.figures(calls + calls_of(1, status="INTERNAL"), 2.0, [16, 32], deadline=1.0)
    rates = {name: value for name, value in found.items() if name.endswith("/s")}
    assert rates == {"requests/s": 2.5, "tokens/s": 48, "goodput/s": 2, "refused/s": 0.5, "expired/s": 0.5} | {
        "failed/s": 0.5
    }
    assert found["refused p99 ms"] == 500
    assert found["p50 ms"] == 500
    assert found["p99 ms"] == pytest.approx(2900)


TEXTS = Workload(name="texts", says="", model="minilm", requests=((16,),) * 4)


async def test_every_call_is_counted_once_by_its_status() -> None:
    """One in four is refused, one in four too late. Where a server counts other tokens than the texts were made
    of, nothing is measured."""
    statuses = ("OK", "RESOURCE_EXHAUSTED", "late", "OK")
    async with fake_server(lambda number: statuses[(number - 1) % 4] if number else "OK") as address:
        load = Load(address=address, workload=TEXTS, clients=3, requests=40, deadline=600)
        found = await drive(load)
    assert found["statuses"] == {"OK": 20, "RESOURCE_EXHAUSTED": 10, "DEADLINE_EXCEEDED": 10}
    figures = found["figures"]
    assert figures["refused/s"] == pytest.approx(figures["requests/s"] / 2)
    assert figures["expired/s"] == pytest.approx(figures["requests/s"] / 2)
    assert figures["tokens/s"] == pytest.approx(16 * figures["requests/s"])
    assert figures["clients: CPU ms/request"] >= 0
    async with fake_server(lambda number: "OK", tokens=17) as address:
        with pytest.raises(LoadFailed, match="made of 16 tokens, the server counted 17"):
            await drive(Load(address=address, workload=TEXTS, requests=4))
