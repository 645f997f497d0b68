"""Times steps of texts of many lengths on a processor before anything is served. Knows no settings and no logs."""

import time
from functools import partial
from itertools import count
from math import inf

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.loop.retries import Report, StepRetries
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.model import Model
from gpu_worker.startup.memory_trials import first_slice
from gpu_worker.startup.step_time import StepTimes, find_step_times
from gpu_worker.startup.trial_texts import trial_texts
from shared.jobs import Classify, Encode, Job, Work
from shared.vectors import InputType, Task

SHORTEST, SPREAD, GOLDEN = 8, 240, 0.618
"""Lengths of the texts in a step: from 8 to 247 tokens, spread evenly by the golden ratio, so that few are equal."""


def try_step_times(model: Model, bound: float, chosen: int, report: Report) -> StepTimes:
    """Finds the tokens of a step that pay within `bound` seconds, `inf` for no bound. Call it in the computing thread.

    `chosen`: the user's own number, 0 for the device's default. Nothing is timed for a user's number, without a bound,
    and on an accelerator, where a step's size follows from memory. Raises the error of a step that fails.
    """
    usual = chosen or model.placement.step_tokens
    if chosen or bound == inf or model.placement.device_memory is not None:
        return StepTimes(usual=usual)
    engine = ModelEngine(model)
    return find_step_times(partial(_seconds, engine, StepRetries(engine, report)), usual, bound)


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


def _seconds(engine: ModelEngine, retries: StepRetries, tokens: int) -> float:
    """Seconds of this thread for one step: time that other processes take from it tells nothing of the model."""
    job_slice = first_slice(engine.open(timed_job(engine.model, tokens)), tokens)
    start = time.thread_time()
    failure = retries.collect_step(retries.launch_alone(job_slice), 1)
    if failure is not None:
        raise failure
    return time.thread_time() - start
