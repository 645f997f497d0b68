"""`--check`: loads and warms up a model as the worker does, prints its card and what was measured, and ends."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.model import Model
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.startup.piece_limits import (
    adapters_by_fingerprint,
    cache_bytes,
    card_with_limits,
    piece_limits,
    summary,
)
from gpu_worker.startup.step_size import Trial, choose_step
from gpu_worker.startup.trial_jobs import warm_up_jobs
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.errors import ModelRefused, SelvageError

MEBIBYTE = 1024 * 1024


def check_model(
    name: str,
    load: Callable[[], Model],
    step_tokens: int = 0,
    step_limit: Callable[[float], float] = lambda default: default,
    chunk_tokens: int | None = None,
    cache_megabytes: int = 0,
) -> int:
    """Loads and warms up a model, and prints its card. Returns 0, or 2 after one line that says what is wrong.

    `step_tokens`, `step_limit`: the user's own bounds of a step; `chunk_tokens`, `cache_megabytes`: of texts in pieces;
    see `WorkerSettings`.
    """
    start = time.monotonic()
    try:
        model = load()
        memory = model.placement.device_memory
        loading = memory.peak if memory else 0
        engine = ModelEngine(model)
        kept_bytes = cache_bytes(model, cache_megabytes)
        bound = step_limit(model.placement.step_seconds)
        trials, times = choose_step(model, bound, step_tokens, kept_bytes=kept_bytes)
        tokens = times.tokens
        limits = piece_limits(model, tokens, chunk_tokens, kept_bytes)
        adapters = adapters_by_fingerprint(model, limits)
        engine.cut_texts(limits, adapters)
        card = card_with_limits(model, limits)
        loop = Scheduler(engine, step_tokens=tokens, queued_tokens=sys.maxsize, cache_bytes=limits.cache_bytes)
        jobs = list(warm_up_jobs(model, card.max_tokens))
        for job in (*jobs, *(replace(jobs[0], model=name) for name in adapters)):
            loop.submit(job)
            for answer in loop.until_idle():
                if isinstance(answer.outcome, SelvageError):
                    raise answer.outcome
    except (ModelRefused, SelvageError) as error:
        print(f"--model = {name!r}: {error}", file=sys.stderr)
        return 2
    _print_card(card)
    _print_tables(model)
    for measurement in model.findings:
        _print_line("measured at load", measurement)
    _print_memory(model, loading, trials)
    if times.seconds:
        _print_line("steps, timed", str(times))
    _print_line("step, at most", f"{tokens} tokens")
    _print_line("long texts", summary(model, card))
    _print_line("texts that begin alike", model.sharing)
    _print_line("bits of a text", model.bits)
    for fingerprint, adapter in adapters.items():
        size = f"{adapter.weight_bytes / MEBIBYTE:.1f} MiB, fingerprint {fingerprint}"
        _print_line(f"adapter {adapter.names[0]}", f"{adapter.notice}; {size}")
    seconds = time.monotonic() - start
    print(f"loaded, compared with its own attention and warmed up in {seconds:.1f} s: it can be served")
    return 0


def _print_card(card: ModelCard) -> None:
    for field in fields(card):
        _print_line(field.name, _text_of(getattr(card, field.name)))


def _print_tables(model: Model) -> None:
    """Prints the tables of static embeddings, and who looks texts up in them."""
    for side in model.sides:
        if side.recipe.static:
            whose = "queries" if side is model.query else "documents" if model.query else "all texts"
            where = "frontends look them up" if side is model.query and side.table else "the worker looks them up"
            size = f"{side.vocabulary_size} x {side.encoder.width} {side.placement.dtype_name}"
            _print_line("table", f"{whose}: {size}, {side.weight_bytes / MEBIBYTE:.1f} MiB; {where}")


def _print_memory(model: Model, loading: int, trials: Sequence[Trial]) -> None:
    """Prints what memory the model takes. `loading`: most bytes of the device until the model was loaded."""
    _print_line("weights", f"{model.weight_bytes / MEBIBYTE:.0f} MiB")
    _print_line("process, at most", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if trials:
        _print_line("device, to load", f"{loading / MEBIBYTE:.0f} MiB")
    for trial in trials:
        _print_line("device, largest step", str(trial))


def _print_line(name: str, value: str) -> None:
    print(f"{name:26} {value}")


def _text_of(value: object) -> str:
    """The text of a card's field, for people."""
    if isinstance(value, tuple):
        return ", ".join(map(_text_of, value)) or "-"
    if isinstance(value, LateInteraction | QueryRoute):
        return ", ".join(f"{field.name} {_text_of(getattr(value, field.name))}" for field in fields(value))
    if isinstance(value, Listwise):
        return ", ".join(f"{field.name} {getattr(value, field.name)!r}" for field in fields(value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {entry!r}" for key, entry in value.items()) or "-"
    return str(getattr(value, "name", value)) or "-"
