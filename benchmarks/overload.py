"""More than the services can do: goodput with deadlines, and what is refused.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. All on the same cores, clients included, so refusing takes from computing. The peak is
measured right before and right after each of these: a machine's speed changes within minutes. What refusals and the
clients leave of the processor is told, and what share of that the answers in time make use of.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, pair

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES, NEAR = 2.0, 4, 10.0
"""Shortest deadline in seconds; deadline in medians of the peak; most seconds for which a peak is measured."""


def overload(server: Server, workload: str, times: float, seconds: float, *, timed: bool) -> Figures:
    """Measures `times` the peak, with deadlines or without, and what share of the peak was answered in time."""
    peak = partial(generated, server, workload, clients=CLIENTS, seconds=min(NEAR, seconds))
    before = peak()
    deadline = max(LEAST_DEADLINE, LATENCIES * before["p50 ms"] / 1e3)
    load: dict[str, Any] = {"rate": times * before["requests/s"], "warmup": deadline, "seconds": seconds}
    figures = generated(server, workload, **load, **({"deadline": deadline} if timed else {}))
    most = (before["requests/s"] + peak()["requests/s"]) / 2
    accepted = sum(figures.get(f"{name}/s", 0.0) for name in ("requests", "expired", "failed"))
    shares = {
        "the peak, requests/s": most,
        "of the peak, %": 100 * figures["goodput/s" if timed else "requests/s"] / most,
    }
    expired = {"expired, % of accepted": 100 * figures.get("expired/s", 0.0) / accepted} if accepted else {}
    return {**figures, **shares, **expired, **left(figures, before)}


def left(figures: Figures, peak: Figures) -> Figures:
    """Computes what share of the processor clients and frontend took, and what share of the rest goodput made use of.

    At the peak an answer takes so many CPU seconds of the worker; the rest is enough for so many answers a second.
    """
    milliseconds = 1e3 * len(os.sched_getaffinity(0))
    taken = figures["requests/s"] * sum(figures[f"{name}: CPU ms/request"] for name in ("clients", "frontend"))
    possible = (milliseconds - taken) / peak["worker: CPU ms/request"]
    answered = figures.get("goodput/s", figures["requests/s"])
    return {
        "clients and frontend, % of the processor": 100 * taken / milliseconds,
        "goodput, % of what they leave": 100 * answered / possible,
    }


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts our services and those of other checkouts; yields their turns under all loads."""
    with ExitStack() as cleanup:
        servers = {name: cleanup.enter_context(pair(path, options.threads)) for name, path in options.checkouts.items()}
        cases: dict[str, dict[str, Turn]] = {}
        for workload in WORKLOADS:
            cases[f"{CLIENTS} callers, {workload}"] = {
                name: partial(generated, server, workload, clients=CLIENTS, seconds=options.seconds)
                for name, server in servers.items()
            }
            loads = [*((times, True) for times in TIMES), (TIMES[-1], False)]
            for times, timed in loads:
                cases[f"{times:g} times that, {workload}, {'' if timed else 'no '}deadlines"] = {
                    name: partial(overload, server, workload, times, options.seconds, timed=timed)
                    for name, server in servers.items()
                }
        yield cases
