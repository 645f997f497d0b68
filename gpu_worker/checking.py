"""Rehearsals: one job of every kind that a model can do. Before serving they warm up; `--check` reports on them."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields

import torch

from gpu_worker.abilities import Abilities
from gpu_worker.card import card_of
from gpu_worker.computing import Part
from gpu_worker.engine import ModelEngine
from gpu_worker.models.loading import Model
from gpu_worker.models.recipe import ModelRefused
from shared.card import ModelCard
from shared.errors import SelvageError
from shared.jobs import Classify, Encode, Job, Score, Work
from shared.ragged import RaggedTokens
from shared.vectors import Layout, ScoringMethod, Task

LENGTHS = (1, 8, 64, 256)


def rehearsal(model: Model) -> Iterator[Job]:
    """Jobs over texts of a few lengths, for every output, method and task."""
    abilities = Abilities(model)
    works: list[Work] = [
        Encode(outputs=frozenset({output}), normalize=True, normalize_tokens=True) for output in abilities.outputs
    ]
    works += [
        Score(method=method, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
        for method in abilities.methods
        if method is not ScoringMethod.CROSS_ENCODER
    ]
    works += [Classify()] * (Task.CLASSIFY in abilities.tasks)
    works += [Classify(tokens=True)] * (Task.CLASSIFY_TOKENS in abilities.tasks)
    lengths = [min(length, model.max_tokens) for length in LENGTHS]
    middle = model.vocabulary_size // 2  # no special token, in most vocabularies
    for identity, work in enumerate(works):
        yield Job(id=identity, work=work, tokens=RaggedTokens.of([[middle] * length for length in lengths]))


def check(name: str, load: Callable[[], Model]) -> int:
    """Loads, rehearses and prints the card; 0, or 2 with one line that says what is wrong."""
    start = time.monotonic()
    try:
        model = load()
        engine = ModelEngine(model)
        for job in rehearsal(model):
            progress = engine.open(job)
            engine.step([Part(progress=progress, start=0, stop=len(progress.costs))])
            progress.result()
    except (ModelRefused, SelvageError) as error:
        print(f"--model = {name!r}: {error}", file=sys.stderr)
        return 2
    _print(card_of(model), model, time.monotonic() - start)
    return 0


def _print(card: ModelCard, model: Model, seconds: float) -> None:
    for each in fields(card):
        print(f"{each.name:26} {_shown(getattr(card, each.name))}")
    mebibytes = 1024 * 1024
    print(f"{'weights':26} {card.weight_bytes / mebibytes:.0f} MiB")
    print(f"{'process, at most':26} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if model.placement.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(model.placement.device)
        print(f"{'device, at most':26} {peak / mebibytes:.0f} MiB")
    print(f"loaded, compared with its own attention and rehearsed in {seconds:.1f} s: it can be served")


def _shown(value: object) -> str:
    """A field of the card as a person reads it."""
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {each!r}" for key, each in value.items()) or "-"
    return str(getattr(value, "name", value)) or "-"
