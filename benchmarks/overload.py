"""More than the services can do: goodput with deadlines, a rerank among many callers, an interactive caller among bulk.

The peak is what 64 callers that wait for their answers get. Then 1.2, 1.5 and 3 times as many requests a second come,
whatever the answers do, each with a deadline of 2 s, or of four times the peak's median where that is more. Goodput
counts answers within it. Memory is the peak of each process. All on the same cores, clients included.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.benchmark import OURS, Options, as_found
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, pair

WHOSE, RATE, COMPARED = OURS, "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS, WORKLOADS, TIMES = 64, ("128-tokens", "16-tokens"), (1.2, 1.5, 3)
LEAST_DEADLINE, LATENCIES = 2.0, 4
"""Seconds; and medians of the peak."""
KEYS = ",".join(f"key{number}" for number in range(CLIENTS))
Peaks = dict[str, Figures]
finished = as_found


def peak(server: Server, workload: str, seconds: float, peaks: Peaks) -> Figures:
    """Callers that wait; kept for what comes after."""
    peaks[workload] = generated(server, workload, clients=CLIENTS, seconds=seconds)
    return peaks[workload]


def overload(server: Server, workload: str, times: float, seconds: float, peaks: Peaks) -> Figures:
    """So many times the peak, with deadlines; what kept to them against the peak."""
    most = peaks[workload]
    deadline = max(LEAST_DEADLINE, LATENCIES * most["p50 ms"] / 1e3)
    asked: dict[str, Any] = {"rate": times * most["requests/s"], "deadline": deadline, "warmup": deadline}
    found = generated(server, workload, seconds=seconds, **asked)
    arrived = sum(found.get(f"{name}/s", 0.0) for name in ("requests", "refused", "expired", "failed"))
    accepted = arrived - found.get("refused/s", 0.0)
    return {
        **found,
        "goodput, % of the peak": 100 * found["goodput/s"] / most["requests/s"],
        "expired, % of accepted": 100 * found.get("expired/s", 0.0) / accepted,
    }


def beside(
    server: Server, workload: str, seconds: float, asked: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Figures:
    """One caller while others call without a pause; the figures are its own."""
    with ThreadPoolExecutor(max(1, len(others))) as threads:
        running = [threads.submit(generated, server, seconds=seconds + 3, **other) for other in others]
        found = generated(server, workload, clients=1, seconds=seconds, warmup=2.0, **asked)
        for each in running:
            each.result()
    return {name: found[name] for name in ("requests/s", "p50 ms", "p99 ms")}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Ours, and every other checkout that is named."""
    with ExitStack() as cleanup:
        servers = {name: cleanup.enter_context(pair(path, options.threads)) for name, path in options.checkouts.items()}
        found: dict[str, dict[str, Turn]] = {}
        peaks: dict[str, Peaks] = {name: {} for name in servers}
        for workload in WORKLOADS:
            asked = {name: (server, workload, options.seconds, peaks[name]) for name, server in servers.items()}
            found[f"{CLIENTS} callers, {workload}"] = {name: partial(peak, *each) for name, each in asked.items()}
            for times in TIMES:
                found[f"{times:g} times that, {workload}, deadlines"] = {
                    name: partial(overload, server, workload, times, options.seconds, peaks[name])
                    for name, server in servers.items()
                }
        yield found | fairness(servers[OURS], options.seconds)


def fairness(server: Server, seconds: float) -> dict[str, dict[str, Turn]]:
    """One caller alone, and among others. In one key all share a turn each; in keys of their own likewise."""
    callers: dict[str, Any] = {"workload": "128-tokens", "clients": CLIENTS}
    rerank = partial(beside, server, "rerank-20", seconds)
    many, huge = callers | {"priorities": "bulk"}, {"workload": "rerank-10000", "clients": 1, "requests": 1}
    interactive = partial(beside, server, "16-tokens", seconds)
    return {
        "a rerank of 20 documents beside 64 callers, 128 tokens": {
            OURS: partial(rerank, {}, [callers]),
            "65 keys": partial(rerank, {"keys": "own"}, [callers | {"keys": KEYS}]),
            "alone": partial(rerank, {}, []),
        },
        "16 tokens beside 64 bulk callers and a rerank of 10,000 documents": {
            OURS: partial(interactive, {"priorities": "interactive"}, [many, huge]),
            "without priorities": partial(interactive, {}, [callers, huge]),
            "alone": partial(interactive, {}, []),
        },
    }
