"""More than the services can do: goodput with deadlines, and what is refused.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. All on the same cores, clients included, so refusing takes from computing. The peak is
measured right before and right after each of these: a machine's speed changes within minutes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, pair

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES, NEAR = 2.0, 4, 10.0
"""Seconds; medians of the peak; seconds of a peak beside a load, or that load's own where they are fewer."""


def overload(server: Server, workload: str, times: float, seconds: float, *, timed: bool) -> Figures:
    """So many times the peak, with deadlines or without; what kept to them against the peak."""
    peak = partial(generated, server, workload, clients=CLIENTS, seconds=min(NEAR, seconds))
    before = peak()
    deadline = max(LEAST_DEADLINE, LATENCIES * before["p50 ms"] / 1e3)
    asked: dict[str, Any] = {"rate": times * before["requests/s"], "warmup": deadline, "seconds": seconds}
    found = generated(server, workload, **asked, **({"deadline": deadline} if timed else {}))
    most = (before["requests/s"] + peak()["requests/s"]) / 2
    accepted = sum(found.get(f"{name}/s", 0.0) for name in ("requests", "expired", "failed"))
    told = {"the peak, requests/s": most, "of the peak, %": 100 * found["goodput/s" if timed else "requests/s"] / most}
    expired = {"expired, % of accepted": 100 * found.get("expired/s", 0.0) / accepted} if accepted else {}
    return {**found, **told, **expired}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Ours, and every other checkout that is named."""
    with ExitStack() as cleanup:
        servers = {name: cleanup.enter_context(pair(path, options.threads)) for name, path in options.checkouts.items()}
        found: dict[str, dict[str, Turn]] = {}
        for workload in WORKLOADS:
            found[f"{CLIENTS} callers, {workload}"] = {
                name: partial(generated, server, workload, clients=CLIENTS, seconds=options.seconds)
                for name, server in servers.items()
            }
            loads = [*((times, True) for times in TIMES), (TIMES[-1], False)]
            for times, timed in loads:
                found[f"{times:g} times that, {workload}, {'' if timed else 'no '}deadlines"] = {
                    name: partial(overload, server, workload, times, options.seconds, timed=timed)
                    for name, server in servers.items()
                }
        yield found
