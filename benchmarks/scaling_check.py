"""The simulation beside real frontends and links: the same arrivals, 1, 2 and 4 workers that take a set time.

Two frontends, 0.5, 0.9 and 1.5 times what the workers can compute, a deadline of 2 s. What a frontend's request and a
message take in the simulation was measured by `frontends`; nothing is fitted to these figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.benchmark import Options
from benchmarks.rounds import Figures, Turn
from benchmarks.scale.constants import DEADLINE, STEP_TOKENS, TIME, TOKENS, measured_scale
from benchmarks.scale.simulation import Offered, Scale, simulate
from benchmarks.scale.stack import RunningStack, timed_stack
from benchmarks.scale.virtual_time import in_virtual_time
from benchmarks.services import generated
from shared.telemetry import logs

OUR_SIDE, REAL = "simulated", "real processes"
RATE, COMPARED = "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
WORKERS, FRONTENDS, LOADS = (1, 2, 4), 2, (0.5, 0.9, 1.5)
WARMUP, SEED = DEADLINE, 1


def real(running: RunningStack, rate: float, seconds: float) -> Figures:
    """Drives the processes in an open loop."""
    load = {"rate": rate, "seconds": seconds, "warmup": WARMUP, "deadline": DEADLINE, "seed": SEED}
    return running.beside(partial(generated, running.server("gRPC", FRONTENDS), f"{TOKENS}-tokens", **load))


def simulated(scale: Scale, rate: float, seconds: float) -> Figures:
    """Runs the same load in virtual time."""
    offered = Offered(rate=rate, tokens=TOKENS, seconds=seconds, warmup=WARMUP, deadline=DEADLINE, seed=SEED)
    return in_virtual_time(simulate(scale, offered))


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts a stack for each number of workers; yields the turns of both sides."""
    logs.configure("json", "critical")  # links of the simulation tell that they are attached
    with ExitStack() as cleanup:
        cases: dict[str, dict[str, Turn]] = {}
        for workers in WORKERS[:1] if options.quick else WORKERS:
            started = timed_stack(workers=workers, frontends=FRONTENDS, time=TIME, step_tokens=STEP_TOKENS)
            running, scale = cleanup.enter_context(started), measured_scale(workers, FRONTENDS)
            for times in LOADS:
                rate, name = times * scale.capacity(TOKENS), f"{workers} worker{'s' * (workers > 1)}, {times:g} times"
                cases[name] = {
                    OUR_SIDE: partial(simulated, scale, rate, options.seconds),
                    REAL: partial(real, running, rate, options.seconds),
                }
        yield cases
