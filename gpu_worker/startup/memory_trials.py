"""Runs the largest step before anything is served, and measures its memory. Knows no settings and no logs."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

from gpu_worker.device.memory import Memory
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.model import Model
from gpu_worker.schedule.interface import JobSlice, OpenJob, StepHandle
from gpu_worker.schedule.steps import MOST_UNDER_WAY, Report, StepRetries
from gpu_worker.startup.step_size import Trial, find_step_size
from gpu_worker.startup.trial_texts import trial_texts
from shared.errors import InputTooLarge
from shared.jobs import Classify, Encode, Job, Score, Work
from shared.vectors import InputType, Layout, OutputKind, ScoringMethod, Task


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
    return find_step_size(
        partial(run_largest_steps, engine, memory, report, kept_bytes=kept_bytes),
        engine.model.placement.step_tokens,
        chosen,
    )


def run_largest_steps(engine: ModelEngine, memory: Memory, report: Report, tokens: int, kept_bytes: int = 0) -> Trial:
    """Runs the largest steps of so many tokens, and measures their memory."""
    memory.reset_peak()
    ran = _run(engine, StepRetries(engine, report), tokens)
    return Trial(tokens=tokens, taken=memory.peak if ran else None, available=memory.available - kept_bytes)


def largest_jobs(model: Model, tokens: int) -> Iterator[Job]:
    """Jobs that each fill a step: the largest outputs of the longest texts, and of the shortest.

    The sides of a Router have lengths of their own. Those of a Score's documents count, since its query has one token.
    """
    vocabulary = min(side.vocabulary_size for side in model.sides)
    for is_long in (True, False):
        for work in _largest_work(Abilities(model), model.input_types):
            side = model.side(work.input_type) if isinstance(work, Encode) else model
            lengths = _longest_texts(side.longest, tokens) if is_long else [1] * tokens
            if len(lengths) > 1 or not isinstance(work, Score):
                yield Job(id=0, work=work, tokens=trial_texts(lengths, vocabulary))


def _longest_texts(longest: int, tokens: int) -> list[int]:
    """The lengths of the longest texts of a step. A text of one token comes first, since scores need a query."""
    longest = min(longest, max(tokens - 1, 1))
    whole, rest = divmod(max(tokens - 1, 0), longest)
    return [1, *([longest] * whole), *([rest] if rest else [])]


def _largest_work(abilities: Abilities, sides: Sequence[InputType]) -> Iterator[Work]:
    """The work that takes most memory: all outputs as float32, late-interaction scores, and logits of every token."""
    for side in sides if abilities.rows else ():
        yield Encode(outputs=frozenset(abilities.rows), normalize=True, normalize_tokens=True, input_type=side)
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        late = ScoringMethod.LATE_INTERACTION
        yield Score(method=late, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    if Task.CLASSIFY in abilities.tasks:
        yield Classify()
    if Task.CLASSIFY_TOKENS in abilities.tasks:
        yield Classify(tokens=True)


def _run(engine: ModelEngine, retries: StepRetries, tokens: int) -> bool:
    """Runs the largest steps, as many at a time as in serving. Returns whether the memory sufficed.

    While one step is computed, the outputs of the one before it still lie on the device.
    """
    under_way, fits = deque[StepHandle](), True
    for job in largest_jobs(engine.model, tokens):
        under_way.append(retries.launch_alone(first_slice(engine.open(job), tokens)))
        if len(under_way) == MOST_UNDER_WAY:
            fits = _collect_step(retries, under_way.popleft())
        if not fits:
            break
    return all([fits, *(_collect_step(retries, handle) for handle in under_way)])


def first_slice(job: OpenJob, tokens: int) -> JobSlice:
    """The first units of a job, as many as the queue would put into a step."""
    ends = list(accumulate(job.costs))
    return JobSlice(job=job, start=0, stop=max(1, bisect_right(ends, tokens)))


def _collect_step(retries: StepRetries, handle: StepHandle) -> bool:
    """Collects a step. Returns whether its memory sufficed, and raises any other error."""
    failure = retries.collect_step(handle, 1)
    if failure is None or isinstance(failure, InputTooLarge):
        return failure is None
    raise failure
