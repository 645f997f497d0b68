"""More than the services can do: goodput with deadlines, and what is refused.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. All on the same cores, clients included, so refusing takes from computing. What is left at
best is measured beside: the same callers as for the peak, while a null grpc.aio server refuses what is too
much. The peak is measured right before and right after each of these: a machine's speed changes within minutes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options
from benchmarks.load.null_server import null_server
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, lasting, pair

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES = 2.0, 4
"""Seconds; and medians of the peak."""
NULL, LEFT = "beside a null server that refuses", "of the peak, %"
"""A side; a figure."""
NEAR = 10.0
"""Seconds of a peak beside a load, or that load's own where they are fewer."""


def peak(server: Server, workload: str, seconds: float) -> Figures:
    """Callers that wait."""
    return generated(server, workload, clients=CLIENTS, seconds=seconds)


def overload(server: Server, workload: str, times: float, seconds: float, *, timed: bool) -> Figures:
    """So many times the peak, with deadlines or without; what kept to them against the peak."""

    def load(before: Figures) -> Figures:
        deadline = max(LEAST_DEADLINE, LATENCIES * before["p50 ms"] / 1e3)
        asked: dict[str, Any] = {"rate": times * before["requests/s"], "warmup": deadline}
        return generated(server, workload, seconds=seconds, **asked, **({"deadline": deadline} if timed else {}))

    found = against_the_peak(server, workload, seconds, load, "goodput/s" if timed else "requests/s")
    accepted = sum(found.get(f"{name}/s", 0.0) for name in ("requests", "expired", "failed"))
    return {**found, **({"expired, % of accepted": 100 * found.get("expired/s", 0.0) / accepted} if accepted else {})}


def left(server: Server, bare: Server, workload: str, times: float, seconds: float) -> Figures:
    """Callers that wait, while the null server refuses what is more than the peak."""

    def load(before: Figures) -> Figures:
        with lasting(bare, workload, (times - 1) * before["requests/s"]):
            return generated(server, workload, clients=CLIENTS, seconds=seconds, warmup=1.0)

    return against_the_peak(server, workload, seconds, load, "requests/s")


def against_the_peak(
    server: Server, workload: str, seconds: float, load: Callable[[Figures], Figures], answered: str
) -> Figures:
    """What `load` gives, which is told the peak before it, and the share of the peak that was `answered` in it."""
    before = peak(server, workload, min(NEAR, seconds))
    found = load(before)
    after = peak(server, workload, min(NEAR, seconds))
    most = (before["requests/s"] + after["requests/s"]) / 2
    return {**found, "the peak, requests/s": most, LEFT: 100 * found[answered] / most}


def finished(sides: Mapping[str, Sequence[Figures]]) -> Mapping[str, Sequence[Figures]]:
    """With what is left of what would be at best, round by round."""
    told = dict(sides)
    for side, rounds in sides.items():
        if NULL in sides and side != NULL:
            pairs = zip(rounds, sides[NULL], strict=True)
            told[side] = [{**own, "of what is left at best, %": 100 * own[LEFT] / best[LEFT]} for own, best in pairs]
    return told


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Ours, and every other checkout that is named."""
    with ExitStack() as cleanup:
        servers = {name: cleanup.enter_context(pair(path, options.threads)) for name, path in options.checkouts.items()}
        found: dict[str, dict[str, Turn]] = {}
        address, pid = cleanup.enter_context(null_server(refuse=True))
        bare = Server(address=address, pids={"null server": pid})
        for workload in WORKLOADS:
            found[f"{CLIENTS} callers, {workload}"] = {
                name: partial(peak, server, workload, options.seconds) for name, server in servers.items()
            }
            for times in TIMES:
                sides: dict[str, Turn] = {
                    name: partial(overload, server, workload, times, options.seconds, timed=True)
                    for name, server in servers.items()
                }
                sides[NULL] = partial(left, servers[OURS], bare, workload, times, options.seconds)
                found[f"{times:g} times that, {workload}, deadlines"] = sides
            found[f"{TIMES[-1]:g} times that, {workload}, no deadlines"] = {
                name: partial(overload, server, workload, TIMES[-1], options.seconds, timed=False)
                for name, server in servers.items()
            }
        yield found
