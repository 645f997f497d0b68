"""The largest step that serving may make, run and measured before anything is served. Knows no settings and no logs."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import accumulate

from gpu_worker.device.memory import Memory
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.loop.interface import JobSlice, RunningJob, StepHandle
from gpu_worker.loop.retries import Report, StepRetries
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.loading import Model
from gpu_worker.queue.step_size import Trial, settle
from shared.errors import InputTooLarge
from shared.jobs import Classify, Encode, Job, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import Layout, OutputKind, ScoringMethod, Task

UNDER_WAY = 2
"""Steps at once, as in serving: while one is computed, the results of the one before still lie on the device."""


def settled(engine: ModelEngine, memory: Memory | None, asked: int, report: Report) -> list[Trial]:
    """What was tried of a step's tokens, the last of them what to serve with; nothing where there is no `memory`.

    `asked`: the user's own number, 0 for the device's. Raises ModelRefused where that does not fit, and what a step
    raises for another reason than memory.
    """
    if memory is None:
        return []
    return settle(partial(measured, engine, memory, report), engine.model.placement.step_tokens, asked)


def measured(engine: ModelEngine, memory: Memory, report: Report, tokens: int) -> Trial:
    """Runs the largest steps of so many tokens."""
    memory.forget()
    ran = _run(engine, StepRetries(engine, report), tokens)
    return Trial(tokens=tokens, taken=memory.peak if ran else None, room=memory.room)


def largest_jobs(model: Model, tokens: int) -> Iterator[Job]:
    """Jobs that each fill a step: the dearest outputs of texts as long, and of texts as short, as they come."""
    longest = min(model.longest, max(tokens - 1, 1))
    whole, rest = divmod(max(tokens - 1, 0), longest)
    middle = model.vocabulary_size // 2  # no special token, in most vocabularies
    # A text of one token comes first: scores have it for a query.
    for lengths in ([1, *([longest] * whole), *([rest] if rest else [])], [1] * tokens):
        texts = RaggedTokens.of([[middle] * length for length in lengths])
        for work in _dearest(Abilities(model)):
            if len(lengths) > 1 or not isinstance(work, Score):
                yield Job(id=0, work=work, tokens=texts)


def _dearest(abilities: Abilities) -> Iterator[Work]:
    """All outputs at once, as float32; scores of token vectors, documents read in place; logits of every token."""
    if abilities.outputs:
        yield Encode(outputs=frozenset(abilities.outputs), normalize=True, normalize_tokens=True)
    if OutputKind.MULTI_VECTOR in abilities.outputs:
        late = ScoringMethod.LATE_INTERACTION
        yield Score(method=late, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    if Task.CLASSIFY in abilities.tasks:
        yield Classify()
    if Task.CLASSIFY_TOKENS in abilities.tasks:
        yield Classify(tokens=True)


def _run(engine: ModelEngine, retries: StepRetries, tokens: int) -> bool:
    """Whether memory held."""
    under_way, sound = deque[StepHandle](), True
    for job in largest_jobs(engine.model, tokens):
        under_way.append(retries.launch(_first_step(engine.open(job), tokens)))
        if len(under_way) == UNDER_WAY:
            sound = _sound(retries, under_way.popleft())
        if not sound:
            break
    return all([sound, *(_sound(retries, each) for each in under_way)])


def _first_step(progress: RunningJob, tokens: int) -> JobSlice:
    """As many units of a job as the queue gives to a step."""
    ends = list(accumulate(progress.costs))
    return JobSlice(progress=progress, start=0, stop=max(1, bisect_right(ends, tokens)))


def _sound(retries: StepRetries, flight: StepHandle) -> bool:
    """Whether a step had memory enough. Raises what else it failed by."""
    failure = retries.collect(flight, 1)
    if failure is None or isinstance(failure, InputTooLarge):
        return failure is None
    raise failure
