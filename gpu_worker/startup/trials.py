"""What runs before anything is served: steps of jobs of no meaning, and one job of every kind.

Real steps tell how many tokens the largest one has: they fit an accelerator's memory, end within a bound of time, and
pay. Knows no settings and no logs.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, count
from math import inf

import numpy as np

from gpu_worker.device.memory import DeviceMemory
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.model import NOT_OF_SEQUENCES, Abilities, Model
from gpu_worker.schedule.interface import JobSlice, OpenJob, OutOfMemory, StepHandle
from gpu_worker.schedule.steps import MOST_UNDER_WAY, launch, release_frames
from shared.errors import ModelRefused
from shared.jobs import Classify, Encode, Job, MaxSim, RaggedTokens, Score, Work
from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, QueryExpansion, ScoringMethod, Task

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
LENGTHS = (1, 8, 64, 256)
"""Lengths of the texts of the warm-up."""
SHORTEST, SPREAD, GOLDEN = 8, 240, 0.618
"""Lengths of the texts in a step: from 8 to 247 tokens, spread evenly by the golden ratio, so that few are equal."""


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

        A model whose usual step takes longer than the bound keeps it too: the scheduler times each step, and makes them
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


def choose_step(model: Model, bound: float, kept_bytes: int = 0) -> tuple[list[Trial], StepTimes]:
    """Chooses the tokens of a step: `tokens` of the times. Also returns the trials of memory that it comes from.

    Call it in the thread that computes. `bound`: seconds that a step may take, `inf` for no bound.
    `kept_bytes`: memory that no step may take. Raises ModelRefused where the smallest step does not fit, and the error
    of a step that fails.
    """
    engine = ModelEngine(model)
    trials = try_step_sizes(engine, model.placement.device_memory, kept_bytes)
    return trials, try_step_times(engine, bound, trials[-1].tokens if trials else 0)


def try_step_sizes(engine: ModelEngine, memory: DeviceMemory | None, kept_bytes: int = 0) -> list[Trial]:
    """Finds the tokens of the largest step that fits. Returns all trials, of which the last one is to be served with.

    `memory`: None on a device whose memory is not measured; then there are no trials. See `choose_step` for the rest.
    """
    if memory is None:
        return []
    measure = partial(run_largest_steps, engine, memory, kept_bytes=kept_bytes)
    return find_step_size(measure, engine.model.placement.step_tokens)


def find_step_size(measure: Callable[[int], Trial], default: int) -> list[Trial]:
    """Halves a step's tokens until it fits. The last trial is the one to serve with.

    Raises ModelRefused where the smallest step does not run. It need not leave anything to spare.
    """
    trials = [measure(default)]
    while not trials[-1].fits and trials[-1].tokens > FEWEST:
        trials.append(measure(max(FEWEST, trials[-1].tokens // 2)))
    if trials[-1].taken is None:
        raise ModelRefused(f"the device has too little memory: {trials[-1]}")
    return trials


def run_largest_steps(engine: ModelEngine, memory: DeviceMemory, tokens: int, kept_bytes: int = 0) -> Trial:
    """Runs the largest steps of so many tokens, and measures their memory."""
    memory.reset_peak()
    ran = _run(engine, tokens)
    return Trial(tokens=tokens, taken=memory.peak if ran else None, available=memory.available - kept_bytes)


def _run(engine: ModelEngine, tokens: int) -> bool:
    """Runs the largest steps, as many at a time as in serving. Returns whether the memory sufficed.

    While one step is computed, the outputs of the one before it still lie on the device.
    """
    under_way, fits = deque[StepHandle](), True
    for job in largest_jobs(engine.model, tokens):
        under_way.append(launch(engine, [_first_slice(engine.open(job), tokens)]))
        if len(under_way) == MOST_UNDER_WAY:
            fits = _fits(engine, under_way.popleft())
        if not fits:
            break
    return all([fits, *(_fits(engine, handle) for handle in under_way)])


def _first_slice(job: OpenJob, tokens: int) -> JobSlice:
    """The first units of a job, as many as the queue would put into a step."""
    ends = list(accumulate(job.costs))
    return JobSlice(job=job, start=0, stop=max(1, bisect_right(ends, tokens)))


def _fits(engine: ModelEngine, handle: StepHandle) -> bool:
    """Collects a step. Returns whether its memory sufficed, and raises any other error."""
    try:
        handle.collect()
    except OutOfMemory as error:
        release_frames(error)
        engine.reclaim()
        return False
    return True


def try_step_times(engine: ModelEngine, bound: float, most: int = 0) -> StepTimes:
    """Finds the tokens of a step that pay within `bound` seconds, `inf` for no bound.

    `most`: most tokens for which an accelerator has the memory; 0: the device's default. Nothing is timed on a
    processor without a bound. Raises the error of a step that fails.
    """
    place = engine.model.placement
    accelerated = place.device_memory is not None
    if bound == inf and not accelerated:
        return StepTimes(usual=place.step_tokens)
    most = most or place.step_tokens
    # An accelerator is not asked for its largest step: while it computes one of two steps, the host does the rest.
    usual, most = (min(OVERLAPPED, most), most) if accelerated else (place.step_tokens, MOST)
    if usual < FEWEST:
        return StepTimes(usual=usual)
    clock = time.perf_counter if accelerated else time.thread_time
    return find_step_times(partial(_seconds, engine, clock), usual, bound, most)


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


def _seconds(engine: ModelEngine, clock: Callable[[], float], tokens: int) -> float:
    """Seconds of one step by `clock`: on a processor those of this thread, since time that other processes take from it
    tells nothing of the model."""
    job_slice = _first_slice(engine.open(timed_job(engine.model, tokens)), tokens)
    start = clock()
    engine.launch([job_slice]).collect()
    return clock() - start


def warm_up_jobs(model: Model, longest: int | None = None) -> Iterator[Job]:
    """Yields a job for every output, method and task of the model, over texts of a few lengths, of at most `longest`
    tokens; None: as many as the model reads."""
    abilities = Abilities(model)
    works: list[Work] = [_encode((output,)) for output in abilities.rows]
    works += [
        Score(method=method, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
        for method in abilities.methods
        if method not in NOT_OF_SEQUENCES
    ]
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        works += [_max_sim(None, abilities.widths[OutputKind.MULTI_VECTOR])]
        late_method = ScoringMethod.LATE_INTERACTION
        works += [
            replace(work, explain=True) for work in works if isinstance(work, Score) and work.method is late_method
        ]
    works += [Classify()] * (Task.CLASSIFY in abilities.tasks)
    works += [Classify(tokens=True)] * (Task.CLASSIFY_TOKENS in abilities.tasks)
    most = model.max_tokens if longest is None else min(model.max_tokens, longest)
    texts = trial_texts([min(length, most) for length in LENGTHS], model.vocabulary_size)
    jobs = [Job(id=identity, work=work, tokens=texts) for identity, work in enumerate(works)]
    yield from jobs
    late = model.late_interaction
    if late is not None and late.query_expansion is not QueryExpansion.NONE and not late.attend_to_expansion:
        tails = tuple(length // 2 for length in jobs[0].tokens.lengths)
        yield replace(jobs[0], id=len(jobs), unattended_tails=tails)
    queries = MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=(2, 0), data=bytes(64))
    yield Job(id=len(jobs) + 1, work=_max_sim(queries, 8))


def _max_sim(queries: MultiVectors | None, dimensions: int) -> MaxSim:
    """Makes a MaxSim with two documents of a caller, one of them without rows. `queries`: None for the texts of the
    job."""
    data = bytes(3 * 4 * dimensions)
    documents = MultiVectors(data_type=DataType.FLOAT32, dimensions=dimensions, lengths=(3, 0), data=data)
    return MaxSim(queries=queries, documents=documents, layout=Layout.MATRIX, unit_rows=True, mean=False)


def largest_jobs(model: Model, tokens: int) -> Iterator[Job]:
    """Jobs that each fill a step: the largest outputs of the longest texts, and of the shortest.

    The lengths of a Score's documents count, since its query has one token.
    """
    for is_long in (True, False):
        for work in _largest_work(Abilities(model)):
            lengths = _longest_texts(model.longest, tokens) if is_long else [1] * tokens
            if len(lengths) > 1 or not isinstance(work, Score):
                yield Job(id=0, work=work, tokens=trial_texts(lengths, model.vocabulary_size))


def _longest_texts(longest: int, tokens: int) -> list[int]:
    """Lists the lengths of the longest texts of a step. A text of one token comes first, since scores need a query."""
    longest = min(longest, max(tokens - 1, 1))
    count, remainder = divmod(max(tokens - 1, 0), longest)
    return [1, *([longest] * count), *([remainder] if remainder else [])]


def _largest_work(abilities: Abilities) -> Iterator[Work]:
    """The work that takes most memory: all outputs as float32, late-interaction scores, and logits of every token."""
    if abilities.rows:
        yield _encode(abilities.rows)
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        late = ScoringMethod.LATE_INTERACTION
        yield Score(method=late, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    if Task.CLASSIFY in abilities.tasks:
        yield Classify()
    if Task.CLASSIFY_TOKENS in abilities.tasks:
        yield Classify(tokens=True)


def timed_job(model: Model, tokens: int) -> Job:
    """Makes a job of so many tokens in texts of many lengths, for the model's first output or task."""
    lengths, unused_tokens = list[int](), tokens
    for number in count():
        if not unused_tokens:
            break
        lengths.append(min(SHORTEST + int(SPREAD * (number * GOLDEN % 1)), model.longest, unused_tokens))
        unused_tokens -= lengths[-1]
    return Job(
        id=0,
        work=_usual_work(Abilities(model)),
        tokens=trial_texts(lengths, model.vocabulary_size),
    )


def _encode(outputs: Sequence[OutputKind]) -> Encode:
    """Makes an Encode of documents: a table may have all that queries get."""
    return Encode(outputs=frozenset(outputs), normalize=True, normalize_tokens=True, input_type=InputType.DOCUMENT)


def _usual_work(abilities: Abilities) -> Work:
    if abilities.rows:
        return _encode(abilities.rows[:1])
    return Classify(tokens=Task.CLASSIFY not in abilities.tasks)


def trial_texts(lengths: Sequence[int], vocabulary: int) -> RaggedTokens:
    """Makes texts of these lengths, of random ids, always the same: no two of some length begin alike, so that none is
    spared what it would take. The ids are of the middle half of the vocabulary, where most have no special tokens."""
    generator, quarter = np.random.default_rng(0), vocabulary // 4
    return RaggedTokens.of([generator.integers(quarter, vocabulary - quarter, length).tolist() for length in lengths])
