"""`--check`: starts the worker, prints its card and what was measured, and stops it."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import fields

from gpu_worker.model.model import Model
from gpu_worker.schedule.driver import EXIT_STATUS, DeviceLost
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.piece_limits import summary
from gpu_worker.startup.trials import Trial
from gpu_worker.worker import ModelWorker
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.errors import ModelRefused

MEBIBYTE = 1024 * 1024


def check(settings: WorkerSettings) -> int:
    """Starts a worker and stops it. Returns 0 after its card, or 2 after one line that says what is wrong."""
    start = time.monotonic()
    try:
        worker = asyncio.run(_started_and_stopped(settings))
    except ModelRefused as error:
        print(f"--model = {settings.model!r}: {error}", file=sys.stderr)
        return 2
    except DeviceLost as lost:  # its thread hangs, and could not be joined
        print(f"--model = {settings.model!r}: {lost}", file=sys.stderr, flush=True)
        os._exit(EXIT_STATUS)
    model, card, times = worker.model, worker.card, worker.times
    _print_card(card)
    _print_tables(model)
    for measurement in model.findings:
        _print_line("measured at load", measurement)
    _print_memory(model, worker.loading_bytes, worker.trials)
    if times.seconds:
        _print_line("steps, timed", str(times))
    _print_line("step, at most", f"{times.tokens} tokens")
    _print_line("long texts", summary(model, card))
    _print_line("texts that begin alike", model.sharing)
    _print_line("bits of a text", model.bits)
    for adapter in worker.adapters:
        size = f"{adapter.weight_bytes / MEBIBYTE:.1f} MiB, fingerprint {adapter.fingerprint}"
        _print_line(f"adapter {adapter.id}", f"{adapter.notice}; {size}")
    seconds = time.monotonic() - start
    print(f"loaded, compared with its own attention and warmed up in {seconds:.1f} s: it can be served")
    return 0


async def _started_and_stopped(settings: WorkerSettings) -> ModelWorker:
    worker = await ModelWorker.start(settings)
    worker.serving.cancel()
    await asyncio.wait([worker.serving])
    worker.shut_down()
    return worker


def _print_card(card: ModelCard) -> None:
    for field in fields(card):
        _print_line(field.name, _text_of(getattr(card, field.name)))


def _print_tables(model: Model) -> None:
    """Prints the table of a static embedding or of queries, and who looks texts up in it."""
    if model.recipe.static:
        size = f"{model.vocabulary_size} x {model.encoder.width} {model.placement.dtype_name}"
        _print_line("table", f"all texts: {size}, {model.weight_bytes / MEBIBYTE:.1f} MiB; the worker looks them up")
    if (queries := model.queries) is not None:
        where = "frontends look them up" if queries.sent else "the worker looks them up"
        size = f"{queries.token_ids} float32, {queries.weight_bytes / MEBIBYTE:.1f} MiB"
        _print_line("table", f"queries: {size}; {where}")


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
    """Writes the text of a card's field, for people."""
    if isinstance(value, tuple):
        return ", ".join(map(_text_of, value)) or "-"
    if isinstance(value, LateInteraction | QueryRoute):
        return ", ".join(f"{field.name} {_text_of(getattr(value, field.name))}" for field in fields(value))
    if isinstance(value, Listwise):
        return ", ".join(f"{field.name} {getattr(value, field.name)!r}" for field in fields(value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {entry!r}" for key, entry in value.items()) or "-"
    return str(getattr(value, "name", value)) or "-"
