"""The warm-up: one job of every kind that a model can do, before the worker serves. `--check` reports on it."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.abilities import NOT_OF_SEQUENCES, Abilities
from gpu_worker.model.model import Model
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import silent
from gpu_worker.startup.memory_trials import try_step_sizes
from gpu_worker.startup.piece_limits import (
    adapters_by_fingerprint,
    cache_bytes,
    card_with_limits,
    piece_limits,
    summary,
)
from gpu_worker.startup.step_size import Trial
from gpu_worker.startup.time_trials import try_step_times
from gpu_worker.startup.trial_texts import trial_texts
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.errors import ModelRefused, SelvageError
from shared.jobs import Classify, Encode, Job, MaxSim, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, OutputKind, QueryExpansion, ScoringMethod, Task

LENGTHS = (1, 8, 64, 256)
MEBIBYTE = 1024 * 1024


def warm_up_jobs(model: Model, longest: int | None = None) -> Iterator[Job]:
    """A job for every output, method and task of the model, over texts of a few lengths, of at most `longest` tokens;
    None: as many as the model reads."""
    abilities = Abilities(model)
    works: list[Work] = [
        Encode(outputs=frozenset({output}), normalize=True, normalize_tokens=True, input_type=side)
        for output in abilities.rows
        for side in model.input_types
    ]
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
    jobs = [Job(id=identity, work=work, tokens=_texts(model, work, longest)) for identity, work in enumerate(works)]
    yield from jobs
    late = model.late_interaction
    if late is not None and late.query_expansion is not QueryExpansion.NONE and not late.attend_to_expansion:
        tails = tuple(length // 2 for length in jobs[0].tokens.lengths)
        yield replace(jobs[0], id=len(jobs), unattended_tails=tails)
    queries = MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=(2, 0), data=bytes(64))
    yield Job(id=len(jobs) + 1, work=_max_sim(queries, 8))


def _texts(model: Model, work: Work, longest: int | None) -> RaggedTokens:
    """Texts of a few lengths, of at most `longest` tokens and no more than each side that reads them can."""
    sides = (model.side(work.input_type),) if isinstance(work, Encode) else model.sides
    most = min(side.max_tokens for side in sides)
    lengths = [min(length, most if longest is None else min(most, longest)) for length in LENGTHS]
    return trial_texts(lengths, min(side.vocabulary_size for side in sides))


def _max_sim(queries: MultiVectors | None, dimensions: int) -> MaxSim:
    """MaxSim with two documents of a caller, one of them without rows. `queries`: None for the texts of the job."""
    data = bytes(3 * 4 * dimensions)
    documents = MultiVectors(data_type=DataType.FLOAT32, dimensions=dimensions, lengths=(3, 0), data=data)
    return MaxSim(queries=queries, documents=documents, layout=Layout.MATRIX, unit_rows=True, mean=False)


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
        trials = try_step_sizes(engine, memory, step_tokens, silent, kept_bytes)
        most = trials[-1].tokens if trials else 0
        times = try_step_times(model, step_limit(model.placement.step_seconds), step_tokens, silent, most)
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
