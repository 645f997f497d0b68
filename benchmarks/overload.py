"""More than the services can do: goodput with deadlines, and what is refused.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. All on the same cores, clients included, so refusing takes from computing. The peak is
measured right before and right after each of these: a machine's speed changes within minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Figures, Options, Turn
from benchmarks.servers import Server, generated, pair
from benchmarks.workloads import Workload, named

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES, NEAR = 2.0, 4, 10.0
"""Shortest deadline in seconds; deadline in medians of the peak; most seconds for which a peak is measured."""


def overload(server: Server, workload: Workload, times: float, seconds: float, *, timed: bool) -> Figures:
    """Measures `times` the peak, with deadlines or without: the share of the peak that was answered in time, the CPU of
    a refusal, and how many of the accepted requests came too late."""
    peak = partial(generated, server, workload, clients=CLIENTS, seconds=min(NEAR, seconds))
    before = peak()
    deadline = max(LEAST_DEADLINE, LATENCIES * before["p50 ms"] / 1e3)
    load: dict[str, Any] = {"rate": times * before["requests/s"], "warmup": deadline, "seconds": seconds}
    figures = generated(server, workload, deadline=deadline if timed else 0.0, **load)
    most = (before["requests/s"] + peak()["requests/s"]) / 2
    figures["the peak, requests/s"] = most
    figures["of the peak, %"] = 100 * figures["goodput/s" if timed else "requests/s"] / most
    if figures.get("refused/s"):
        more = figures["frontend: CPU ms/request"] - before["frontend: CPU ms/request"]
        figures["a refusal: CPU ms"] = more * figures["requests/s"] / figures["refused/s"]
    if accepted := sum(figures.get(f"{name}/s", 0.0) for name in ("requests", "expired", "failed")):
        figures["expired, % of accepted"] = 100 * figures.get("expired/s", 0.0) / accepted
    return figures


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts our services; yields their turns under all loads."""
    with pair(options.threads) as server:
        cases: dict[str, dict[str, Turn]] = {}
        for name in WORKLOADS:
            workload = named()[name]
            waiting = partial(generated, server, workload, clients=CLIENTS, seconds=options.seconds)
            cases[f"{CLIENTS} callers, {name}"] = {OURS: waiting}
            for times, timed in (*((times, True) for times in TIMES), (TIMES[-1], False)):
                case = f"{times:g} times that, {name}, {'' if timed else 'no '}deadlines"
                cases[case] = {OURS: partial(overload, server, workload, times, options.seconds, timed=timed)}
        yield cases
