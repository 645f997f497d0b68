"""More than the services can do, of short and of long calls at once: what each kind gets, and what is refused.

Calls of 16 tokens, reranks of 100 documents and token rows of 22 MB come at the same time, whatever the answers do: of
each a third of what the services can do of it alone, and twice that. Each call has a deadline of 2 s, or of four times
its median where only such calls come. Goodput counts answers within it. All on the same cores, clients included.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.benchmark import OURS, Options
from benchmarks.overload import LATENCIES, LEAST_DEADLINE
from benchmarks.rounds import Figures, Turn
from benchmarks.services import Server, generated, pair

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ()
PEERS: Mapping[str, Sequence[str]] = {}
CLIENTS = {"16-tokens": 64, "100-documents": 4, "22-megabytes": 4}
"""Clients that wait for their answers, by workload: as many as give its peak."""
TIMES = (1, 2)
STARTED = 3.0
"""Seconds after which the processes of all clients send."""


def mixed(server: Server, times: float, seconds: float) -> Figures:
    """Measures all workloads alone and then at once, each at its part of `times` the peak; figures by workload."""
    peaks = {name: generated(server, name, clients=count, seconds=seconds) for name, count in CLIENTS.items()}
    deadlines = {name: max(LEAST_DEADLINE, LATENCIES * peak["p50 ms"] / 1e3) for name, peak in peaks.items()}
    warmup = max(deadlines.values()) + STARTED
    with ThreadPoolExecutor(len(CLIENTS)) as threads:
        loads = {
            name: threads.submit(
                generated,
                server,
                name,
                rate=times * peak["requests/s"] / len(CLIENTS),
                deadline=deadlines[name],
                warmup=warmup,
                seconds=max(seconds, warmup),
            )
            for name, peak in peaks.items()
        }
        measured = {name: load.result() for name, load in loads.items()}
    figures: dict[str, float] = {}
    for name, load_figures in measured.items():
        part, milliseconds = peaks[name]["requests/s"] / len(CLIENTS), deadlines[name] * 1e3
        figures |= {
            f"{name}: goodput/s": load_figures["goodput/s"],
            f"{name}: goodput, % of its part of the peak": 100 * load_figures["goodput/s"] / part,
            f"{name}: deadline ms": milliseconds,
            **{f"{name}: {end}/s": load_figures.get(f"{end}/s", 0.0) for end in ("refused", "expired", "failed")},
        }
        for quantile in ("p50", "p99") if "p99 ms" in load_figures else ():  # where any was answered
            time = load_figures[f"{quantile} ms"]
            figures |= {
                f"{name}: {quantile} ms": time,
                f"{name}: {quantile}, % of the deadline": 100 * time / milliseconds,
            }
    shares = [figures[f"{name}: goodput, % of its part of the peak"] for name in CLIENTS]
    return {"goodput of all, % of the peak": sum(shares) / len(shares), **figures}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts our services; yields their turns at the peak and above it."""
    with ExitStack() as cleanup:
        server = cleanup.enter_context(pair(options.checkouts[OURS], options.threads))
        yield {f"{times} x the peak": {OURS: partial(mixed, server, times, options.seconds)} for times in TIMES}
