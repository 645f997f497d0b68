"""More than the services can do: goodput with deadlines, and what is refused.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. All on the same cores, clients included, so refusing takes from computing. The peak is
measured right before and right after each of these: a machine's speed changes within minutes. What refusals and the
clients leave of the processor is told, and what share of that the answers in time make use of.

Two threads that compute one step wait for each other, so what is left cannot all be used: where a refusal takes one
core, the other one waits too. How much can be used at 3 times the peak is measured beside: the same callers as for the
peak, while a grpc.aio server that knows nothing but to abort refuses as many calls as are too much. Nothing that
refuses by gRPC in Python takes less.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options
from benchmarks.load.null_server import null_server
from benchmarks.load.processor import CpuSeconds
from benchmarks.machine import ROOT
from benchmarks.peers.process import modules_of
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, load_command, pair

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES, NEAR = 2.0, 4, 10.0
"""Shortest deadline in seconds; deadline in medians of the peak; most seconds for which a peak is measured."""
FLOOR, SHARE, REFUSAL = "beside a null server that refuses", "of the peak, %", "a refusal: CPU ms"
RAMP, LASTING = 2.0, 600.0
"""Seconds until the null server's refusals come at their rate, and for which they would go on."""


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
        SHARE: 100 * figures["goodput/s" if timed else "requests/s"] / most,
    }
    if figures.get("refused/s"):
        more = figures["frontend: CPU ms/request"] - before["frontend: CPU ms/request"]
        shares[REFUSAL] = more * figures["requests/s"] / figures["refused/s"]
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


def floor(server: Server, bare: Server, workload: str, times: float, seconds: float) -> Figures:
    """Measures callers that wait, while the null server refuses what `times` the peak is too much."""
    peak = partial(generated, server, workload, clients=CLIENTS)
    before = peak(seconds=min(NEAR, seconds))
    rate, [pid] = (times - 1) * before["requests/s"], bare.pids.values()
    with refusing(bare, workload, rate):
        spent, start = CpuSeconds.of(pid), time.monotonic()
        figures = peak(seconds=seconds)
        refusals = rate * (time.monotonic() - start)
        spent = CpuSeconds.of(pid) - spent
    most = (before["requests/s"] + peak(seconds=min(NEAR, seconds))["requests/s"]) / 2
    shares = {"the peak, requests/s": most, SHARE: 100 * figures["requests/s"] / most}
    return {**figures, **shares, REFUSAL: 1e3 * spent.whole / refusals}


@contextmanager
def refusing(bare: Server, workload: str, rate: float) -> Iterator[None]:
    """Has calls refused all the while. Exits where they end by themselves."""
    command = load_command(bare, workload, rate=rate, seconds=LASTING)
    environment = os.environ | modules_of(ROOT)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            time.sleep(RAMP)
            yield
            if process.poll() is not None:
                sys.exit("the calls that should have gone on have ended; what was measured beside them means nothing")
        finally:
            process.terminate()


def finished(sides: Mapping[str, Sequence[Figures]]) -> dict[str, Sequence[Figures]]:
    """Adds the goodput as a share of what is left beside the null server's refusals, round by round."""
    figures = dict(sides)
    for side, rounds in sides.items():
        if FLOOR in sides and side != FLOOR:
            pairs = zip(rounds, sides[FLOOR], strict=True)
            figures[side] = [
                {**ours, "of what is left at best, %": 100 * ours[SHARE] / best[SHARE]} for ours, best in pairs
            ]
    return figures


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts our services and those of other checkouts; yields their turns under all loads."""
    with ExitStack() as cleanup:
        servers = {name: cleanup.enter_context(pair(path, options.threads)) for name, path in options.checkouts.items()}
        address, pid = cleanup.enter_context(null_server(refuse=True))
        bare = Server(address=address, pids={"null server": pid})
        cases: dict[str, dict[str, Turn]] = {}
        for workload in WORKLOADS:
            cases[f"{CLIENTS} callers, {workload}"] = {
                name: partial(generated, server, workload, clients=CLIENTS, seconds=options.seconds)
                for name, server in servers.items()
            }
            loads = [*((times, True) for times in TIMES), (TIMES[-1], False)]
            for times, timed in loads:
                sides: dict[str, Turn] = {
                    name: partial(overload, server, workload, times, options.seconds, timed=timed)
                    for name, server in servers.items()
                }
                if timed and times == TIMES[-1]:
                    sides[FLOOR] = partial(floor, servers[OURS], bare, workload, times, options.seconds)
                cases[f"{times:g} times that, {workload}, {'' if timed else 'no '}deadlines"] = sides
        yield cases
