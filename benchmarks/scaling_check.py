"""The simulation beside real frontends and links: the same arrivals, 1, 2 and 4 timed workers, and one with MiniLM.

Two frontends; 0.5, 0.9 and 1.5 times what the workers can compute; a deadline of 4 s. Before each case a lone client
measures what a request takes of a frontend's core, and of messages and wake-ups beside its step. The simulation takes
both from there, so a machine that is busy all the time is the same for both sides; nothing is fitted to the loaded
runs. The last cases have a real worker of one thread with MiniLM, one frontend, and requests of 8 texts of 128 tokens;
of that worker the lone client measures the speed too. `--seconds 16` takes six minutes in all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.benchmark import Options
from benchmarks.frontends import CPU, by_part
from benchmarks.rounds import Figures, Turn
from benchmarks.scale.constants import STEP_TOKENS, TOKENS, measured_scale
from benchmarks.scale.simulation import Offered, Scale, simulate
from benchmarks.scale.stack import RunningStack, minilm_stack, timed_stack
from benchmarks.scale.timed_engine import StepTime
from benchmarks.scale.virtual_time import in_virtual_time
from benchmarks.services import Server, generated
from shared.telemetry import logs

OUR_SIDE, REAL = "simulated", "real processes"
RATE, COMPARED = "tokens/s", ("goodput/s", "p50 ms", "p99 ms")
PEERS: Mapping[str, Sequence[str]] = {}
WORKERS, FRONTENDS, LOADS, MINILM_LOADS = (1, 2, 4), 2, (0.5, 0.9, 1.5), (0.5, 0.9)
TIME, DEADLINE = StepTime(speed=2000.0, overhead=0.02), 4.0
"""The timed workers and the deadline in seconds: half as fast as those of `scaling`, so that clients, frontends and
four workers leave two cores idle for most of the time, and what wake-ups take is little beside a step."""
WARMUP, SEED, LONE_SECONDS, HOPS = DEADLINE, 1, 3.0, 4
LISTS, LIST_TEXTS, MINILM_STEP = "8-long-texts", 8, 1024
"""The requests of the real worker, their texts of TOKENS tokens each, and the tokens of its steps."""
LIST_TOKENS = LIST_TEXTS * TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """What a lone client measures, in seconds: a whole request, and its part of a frontend's core."""

    whole: float
    frontend: float


def lone(running: RunningStack, server: Server, workload: str) -> Lone:
    """Measures a closed loop of one client."""
    figures = by_part(running.beside(partial(generated, server, workload, clients=1, seconds=LONE_SECONDS)))
    return Lone(whole=figures["p50 ms"] / 1e3, frontend=figures[f"frontend: {CPU}"] / 1e3)


def calibrated(scale: Scale, measured: Lone) -> Scale:
    """Sets the frontend's part, and the latency of a message so that a lone request takes what it was measured to."""
    latency = max(0.0, measured.whole - measured.frontend - scale.time.seconds(TOKENS)) / HOPS
    refusal = min(scale.refusal_seconds, measured.frontend / 2)
    return replace(scale, latency=latency, request_seconds=measured.frontend, refusal_seconds=refusal)


def as_fast(scale: Scale, measured: Lone) -> Scale:
    """Sets the frontend's part, and the speed so that a lone request of LISTS takes what it was measured to."""
    speed = LIST_TOKENS / (measured.whole - measured.frontend - HOPS * scale.latency)
    return replace(scale, time=StepTime(speed=speed), request_seconds=measured.frontend)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLoad:
    """A load of `rate` requests a second on processes, and what the simulation of them starts from.

    `calibrate`: sets a scale by a lone client's figures. `texts`: those of a request, of TOKENS tokens each.
    """

    running: RunningStack
    server: Server
    workload: str
    texts: int
    scale: Scale
    calibrate: Callable[[Scale, Lone], Scale]
    rate: float
    seconds: float

    def real(self) -> Figures:
        """Drives the processes in an open loop."""
        load = {"rate": self.rate, "seconds": self.seconds, "warmup": WARMUP, "deadline": DEADLINE, "seed": SEED}
        return self.running.beside(partial(generated, self.server, self.workload, **load))

    def simulated(self) -> Figures:
        """Measures a lone client now, and runs the same load in virtual time."""
        scale = self.calibrate(self.scale, lone(self.running, self.server, self.workload))
        tokens = self.texts * TOKENS
        offered = Offered(
            rate=self.rate,
            tokens=tokens,
            texts=self.texts,
            seconds=self.seconds,
            warmup=WARMUP,
            deadline=DEADLINE,
            seed=SEED,
        )
        used = {"message ms": 1e3 * scale.latency, "frontend ms": 1e3 * scale.request_seconds}
        return in_virtual_time(simulate(scale, offered)) | used | {"lone ms": 1e3 * scale.lone_seconds(tokens)}

    @property
    def turns(self) -> dict[str, Turn]:
        """The turns of both sides."""
        return {OUR_SIDE: self.simulated, REAL: self.real}


def timed(running: RunningStack, workers: int, seconds: float) -> Iterator[tuple[str, CheckedLoad]]:
    """The cases of workers that take a set time."""
    scale, server = replace(measured_scale(workers, FRONTENDS), time=TIME), running.server("gRPC", FRONTENDS)
    for times in LOADS:
        yield (
            f"{workers} worker{'s' * (workers > 1)}, {times:g} times",
            CheckedLoad(
                running=running,
                server=server,
                workload=f"{TOKENS}-tokens",
                texts=1,
                scale=scale,
                calibrate=calibrated,
                rate=times * scale.capacity(TOKENS),
                seconds=seconds,
            ),
        )


def minilm(running: RunningStack, seconds: float) -> Iterator[tuple[str, CheckedLoad]]:
    """The cases of a real worker. What it can do follows from a lone client, now."""
    server = running.server("gRPC", 1)
    scale = replace(measured_scale(1, 1), step_tokens=MINILM_STEP)
    speed = as_fast(scale, lone(running, server, LISTS)).time.speed
    for times in MINILM_LOADS:
        yield (
            f"MiniLM, {times:g} times",
            CheckedLoad(
                running=running,
                server=server,
                workload=LISTS,
                texts=LIST_TEXTS,
                scale=scale,
                calibrate=as_fast,
                rate=times * speed / LIST_TOKENS,
                seconds=seconds,
            ),
        )


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Starts a stack for each number of workers, and MiniLM's; yields the turns of both sides."""
    logs.configure("json", "critical")  # links of the simulation tell that they are attached
    with ExitStack() as cleanup:
        cases: dict[str, CheckedLoad] = {}
        for workers in WORKERS[:1] if options.quick else WORKERS:
            started = timed_stack(workers=workers, frontends=FRONTENDS, time=TIME, step_tokens=STEP_TOKENS)
            cases |= timed(cleanup.enter_context(started), workers, options.seconds)
        cases |= minilm(cleanup.enter_context(minilm_stack(MINILM_STEP)), options.seconds)
        yield {name: case.turns for name, case in cases.items()}
