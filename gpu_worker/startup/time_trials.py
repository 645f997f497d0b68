"""Times steps of texts of many lengths before anything is served. Knows no settings and no logs."""

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.model import Model
from gpu_worker.schedule.steps import Report, StepRetries
from gpu_worker.startup.memory_trials import first_slice
from gpu_worker.startup.step_time import FEWEST, MOST, StepTimes, find_step_times
from gpu_worker.startup.trial_texts import trial_texts
from shared.jobs import Classify, Encode, Job, Work
from shared.vectors import InputType, Task

OVERLAPPED = 4096
"""Tokens of a step on an accelerator where no larger one pays: of a few requests that come at once, some are answered
while the device computes the others."""
SHORTEST, SPREAD, GOLDEN = 8, 240, 0.618
"""Lengths of the texts in a step: from 8 to 247 tokens, spread evenly by the golden ratio, so that few are equal."""


def try_step_times(model: Model, bound: float, chosen: int, report: Report, most: int = 0) -> StepTimes:
    """Finds the tokens of a step that pay within `bound` seconds, `inf` for no bound. Call it in the computing thread.

    `chosen`: the user's own number, 0 for the device's default. `most`: most tokens for which an accelerator has the
    memory; 0: the device's default. Nothing is timed for a user's number, nor on a processor without a bound. Raises
    the error of a step that fails.
    """
    place = model.placement
    accelerated = place.device_memory is not None
    if chosen or (bound == inf and not accelerated):
        return StepTimes(usual=chosen or place.step_tokens)
    engine = ModelEngine(model)
    most = most or place.step_tokens
    # An accelerator is not asked for its largest step: while it computes one of two steps, the host does the rest.
    usual, most = (min(OVERLAPPED, most), most) if accelerated else (place.step_tokens, MOST)
    if usual < FEWEST:
        return StepTimes(usual=usual)
    clock = time.perf_counter if accelerated else time.thread_time
    return find_step_times(partial(_seconds, engine, StepRetries(engine, report), clock), usual, bound, most)


def timed_job(model: Model, tokens: int) -> Job:
    """A job of so many tokens in texts of many lengths, for the model's first output or task."""
    lengths, left = list[int](), tokens
    for number in count():
        if not left:
            break
        lengths.append(min(SHORTEST + int(SPREAD * (number * GOLDEN % 1)), model.longest, left))
        left -= lengths[-1]
    return Job(
        id=0,
        work=_usual_work(Abilities(model), model.input_types[-1]),
        tokens=trial_texts(lengths, model.vocabulary_size),
    )


def _usual_work(abilities: Abilities, side: InputType) -> Work:
    if abilities.rows:
        outputs = frozenset(abilities.rows[:1])
        return Encode(outputs=outputs, normalize=True, normalize_tokens=True, input_type=side)
    return Classify(tokens=Task.CLASSIFY not in abilities.tasks)


def _seconds(engine: ModelEngine, retries: StepRetries, clock: Callable[[], float], tokens: int) -> float:
    """Seconds of one step by `clock`: on a processor those of this thread, since time that other processes take from it
    tells nothing of the model."""
    job_slice = first_slice(engine.open(timed_job(engine.model, tokens)), tokens)
    start = clock()
    failure = retries.collect_step(retries.launch_alone(job_slice), 1)
    if failure is not None:
        raise failure
    return clock() - start
