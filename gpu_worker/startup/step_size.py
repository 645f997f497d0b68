"""Finds how many tokens the largest step has: they fit an accelerator's memory, end within a bound of time, and pay.

It runs real steps before anything is served. Knows no settings and no logs.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import inf

from gpu_worker.device.memory import Memory
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.model import Model
from gpu_worker.schedule.interface import JobSlice, OpenJob, StepHandle
from gpu_worker.schedule.steps import MOST_UNDER_WAY, Report, StepRetries, silent
from gpu_worker.startup.trial_jobs import largest_jobs, timed_job
from shared.errors import InputTooLarge, ModelRefused

SPARE_MEMORY = 0.1
"""Part of the memory that stays free, for what no trial holds: vectors of callers, and gaps that grow with time."""
GIBIBYTE = 1 << 30
FEWEST, MOST = 256, 16384
"""Tokens of the smallest step that is run, and of the largest that is timed."""
PAYS = 0.93
"""Share of a smaller step's time by the token under which a larger step pays: it makes others wait twice as long."""
FIRST, ROUNDS = 2, 3
"""Steps of a size when it is first timed (one below the usual size), and further rounds in which sizes alternate.
The second shortest counts: other work of the machine makes steps longer, and a step looks short where other threads
took more than their share."""
LONGEST = 0.5
"""Seconds of the longest step that is timed, whatever the bound: a load should not take much longer for it."""
OVERLAPPED = 4096
"""Tokens of a step on an accelerator where no larger one pays: of a few requests that come at once, some are answered
while the device computes the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The memory that the largest step of so many tokens took.

    `taken`: bytes, weights included; None where the step ran out of memory. `available`: bytes that the process may
    use.
    """

    tokens: int
    taken: int | None
    available: int

    @property
    def fits(self) -> bool:
        """Whether the step fits, with something to spare."""
        return self.taken is not None and self.taken <= (1 - SPARE_MEMORY) * self.available

    def __str__(self) -> str:
        available = f"{self.available / GIBIBYTE:.1f} GiB"
        if self.taken is None:
            return f"a step of {self.tokens} tokens runs out of {available}"
        return f"a step of {self.tokens} tokens takes {self.taken / GIBIBYTE:.1f} of {available}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The `seconds` of a step, by its tokens. `usual`: tokens of a step where nothing larger pays."""

    usual: int
    bound: float = inf
    seconds: Mapping[int, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The tokens to serve with: the usual number, doubled for as long as that pays.

        A model whose usual step takes longer than the bound keeps it too: the loop, which times each step, makes them
        shorter.
        """
        chosen = self.usual
        while 2 * chosen in self.seconds and self._pays(2 * chosen):
            chosen *= 2
        return chosen

    def _pays(self, tokens: int) -> bool:
        """Whether a step ends within the bound and is clearly faster by the token than one of half as many tokens."""
        seconds = self.seconds[tokens]
        return seconds <= self.bound and seconds < PAYS * 2 * self.seconds[tokens // 2]

    def __str__(self) -> str:
        """The times of the usual step and of larger ones, or of the largest one that was timed."""
        shown = [tokens for tokens in sorted(self.seconds) if tokens >= self.usual] or [max(self.seconds, default=0)]
        return ", ".join(f"{tokens} tokens in {1e3 * self.seconds.get(tokens, 0.0):.0f} ms" for tokens in shown)


def choose_step(
    model: Model, bound: float, chosen: int = 0, report: Report = silent, kept_bytes: int = 0
) -> tuple[list[Trial], StepTimes]:
    """Chooses the tokens of a step: `tokens` of the times. Also returns the trials of memory that it comes from.

    Call it in the thread that computes. `bound`: seconds that a step may take, `inf` for no bound. `chosen`: the user's
    own number, 0 for the device's default. `kept_bytes`: memory that no step may take. Raises ModelRefused where the
    user's number does not fit, and the error of a step that fails.
    """
    engine = ModelEngine(model)
    trials = try_step_sizes(engine, model.placement.device_memory, chosen, report, kept_bytes)
    return trials, try_step_times(engine, bound, chosen, report, trials[-1].tokens if trials else 0)


def try_step_sizes(
    engine: ModelEngine, memory: Memory | None, chosen: int, report: Report, kept_bytes: int = 0
) -> list[Trial]:
    """Finds the tokens of the largest step that fits. Returns all trials, of which the last one is to be served with.

    `memory`: None on a device whose memory is not measured; then there are no trials. `chosen`: the user's own number,
    0 for the device's default. `kept_bytes`: memory that no step may take. Raises ModelRefused where the user's number
    does not fit, and every error of a step that is not about memory.
    """
    if memory is None:
        return []
    measure = partial(run_largest_steps, engine, memory, report, kept_bytes=kept_bytes)
    return find_step_size(measure, engine.model.placement.step_tokens, chosen)


def find_step_size(measure: Callable[[int], Trial], default: int, chosen: int = 0) -> list[Trial]:
    """Halves a step's tokens until it fits. The last trial is the one to serve with.

    `chosen`: the user's own number, 0 for the default. Raises ModelRefused where that number does not fit, since its
    user should know, and where the smallest step does not run. The smallest step need not leave anything to spare.
    """
    trials = [measure(chosen or default)]
    while not trials[-1].fits and trials[-1].tokens > FEWEST:
        trials.append(measure(max(FEWEST, trials[-1].tokens // 2)))
    first, last = trials[0], trials[-1]
    if last.taken is None:
        raise ModelRefused(f"the device has too little memory: {last}")
    if chosen and last is not first:
        raise ModelRefused(f"--step-tokens = {chosen} does not fit the device: {first}; {last.tokens} fit")
    return trials


def run_largest_steps(engine: ModelEngine, memory: Memory, report: Report, tokens: int, kept_bytes: int = 0) -> Trial:
    """Runs the largest steps of so many tokens, and measures their memory."""
    memory.reset_peak()
    ran = _run(engine, StepRetries(engine, report), tokens)
    return Trial(tokens=tokens, taken=memory.peak if ran else None, available=memory.available - kept_bytes)


def _run(engine: ModelEngine, retries: StepRetries, tokens: int) -> bool:
    """Runs the largest steps, as many at a time as in serving. Returns whether the memory sufficed.

    While one step is computed, the outputs of the one before it still lie on the device.
    """
    under_way, fits = deque[StepHandle](), True
    for job in largest_jobs(engine.model, tokens):
        under_way.append(retries.launch_alone(_first_slice(engine.open(job), tokens)))
        if len(under_way) == MOST_UNDER_WAY:
            fits = _collect_step(retries, under_way.popleft())
        if not fits:
            break
    return all([fits, *(_collect_step(retries, handle) for handle in under_way)])


def _first_slice(job: OpenJob, tokens: int) -> JobSlice:
    """The first units of a job, as many as the queue would put into a step."""
    ends = list(accumulate(job.costs))
    return JobSlice(job=job, start=0, stop=max(1, bisect_right(ends, tokens)))


def _collect_step(retries: StepRetries, handle: StepHandle) -> bool:
    """Collects a step. Returns whether its memory sufficed, and raises any other error."""
    failure = retries.collect_step(handle, 1)
    if failure is None or isinstance(failure, InputTooLarge):
        return failure is None
    raise failure


def try_step_times(engine: ModelEngine, bound: float, chosen: int, report: Report, most: int = 0) -> StepTimes:
    """Finds the tokens of a step that pay within `bound` seconds, `inf` for no bound.

    `chosen`: the user's own number, 0 for the device's default. `most`: most tokens for which an accelerator has the
    memory; 0: the device's default. Nothing is timed for a user's number, nor on a processor without a bound. Raises
    the error of a step that fails.
    """
    place = engine.model.placement
    accelerated = place.device_memory is not None
    if chosen or (bound == inf and not accelerated):
        return StepTimes(usual=chosen or place.step_tokens)
    most = most or place.step_tokens
    # An accelerator is not asked for its largest step: while it computes one of two steps, the host does the rest.
    usual, most = (min(OVERLAPPED, most), most) if accelerated else (place.step_tokens, MOST)
    if usual < FEWEST:
        return StepTimes(usual=usual)
    clock = time.perf_counter if accelerated else time.thread_time
    return find_step_times(partial(_seconds, engine, StepRetries(engine, report), clock), usual, bound, most)


def find_step_times(measure: Callable[[int], float], usual: int, bound: float, most: int = MOST) -> StepTimes:
    """Times steps, twice as large each, until the next one would take longer than the bound or have more than `most`
    tokens.

    `measure`: the seconds of one step of so many tokens. `bound`: seconds. Sizes from the usual one on alternate, so
    that other work of the machine slows down all of them alike.
    """
    longest = min(bound, LONGEST)
    measure(FEWEST)  # the first step pays for what is done once
    runs, fastest, tokens = dict[int, list[float]](), 0.0, FEWEST
    while not runs or (tokens <= min(most, MOST) and tokens <= fastest * longest):
        runs[tokens] = [measure(tokens) for _ in range(FIRST if tokens >= usual else 1)]
        fastest = max(fastest, tokens / max(min(runs[tokens]), 1e-6))
        tokens *= 2
    compared = [tokens for tokens in runs if tokens >= usual]
    for _ in range(ROUNDS if len(compared) > 1 else 0):
        for tokens in compared:
            runs[tokens].append(measure(tokens))
    return StepTimes(
        usual=usual, bound=bound, seconds={tokens: sorted(times)[:2][-1] for tokens, times in runs.items()}
    )


def _seconds(engine: ModelEngine, retries: StepRetries, clock: Callable[[], float], tokens: int) -> float:
    """Seconds of one step by `clock`: on a processor those of this thread, since time that other processes take from it
    tells nothing of the model."""
    job_slice = _first_slice(engine.open(timed_job(engine.model, tokens)), tokens)
    start = clock()
    failure = retries.collect_step(retries.launch_alone(job_slice), 1)
    if failure is not None:
        raise failure
    return clock() - start
