"""(f) Steps packed end to end, against the same steps with every sequence padded to the longest.

Both run on the worker's trunk, with the same texts in the same steps. Where steps are made of texts as they come,
padding wastes most; made by length, least: that is how the engine orders a job, and how others tune padding.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import figures
from benchmarks.ablations import lengths
from benchmarks.ablations.ablation import Ablation
from benchmarks.ablations.case import Case
from benchmarks.ablations.conditions import Conditions
from benchmarks.ablations.masked import packed, padded
from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.model.loading import Model, load
from gpu_worker.model.trunk import PackedTrunk
from gpu_worker.ragged.batch import Counts

PACKED, PADDED = "packed", "padded to the longest of a step"
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
SHAPES = {"uniform": lengths.uniform, "lognormal": lengths.lognormal, "bimodal": lengths.bimodal}
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2}


def case_of(model: Model, shape: str, found: Counts, seed: int, budget: int, *, by_length: bool) -> Case:
    """All steps, of `budget` real tokens at most, of texts with these lengths; ends with one unit row a text."""
    placement, trunk = model.placement, model.trunk
    assert isinstance(trunk, PackedTrunk)
    texts = lengths.texts(found, model.vocabulary_size, seed)
    made = lengths.steps(found, budget, by_length=by_length)
    chosen = [[texts[index] for index in step] for step in made]

    @torch.inference_mode()
    def end_to_end() -> list[Tensor]:
        return [packed(trunk, step) for step in chosen]

    @torch.inference_mode()
    def filled() -> list[Tensor]:
        return [padded(trunk, step) for step in chosen]

    order = "steps by length" if by_length else "steps as texts come"
    return Case(
        name=f"{shape}, {placement.dtype_name}, {order}",
        given={
            "texts": len(found),
            "tokens": int(found.sum()),
            "longest": int(found.max()),
            "steps": len(made),
            "dtype": placement.dtype_name,
            "model": model.name,
        },
        ours=PACKED,
        variants={PACKED: end_to_end, PADDED: filled},
        tolerance=TOLERANCE[placement.dtype_name],
        counts={PACKED: {"tokens_computed": int(found.sum())}, PADDED: {"tokens_computed": _padded(found, made)}},
    )


def _padded(found: Counts, made: Sequence[Sequence[int]]) -> int:
    return sum(len(step) * int(np.max(found[list(step)])) for step in made)


def measured(case: Case, conditions: Conditions) -> dict[str, Any]:
    """With real tokens per second beside the times."""
    outcome, tokens = case.measure(conditions), int(case.given["tokens"])
    for variant in outcome["variants"].values():
        rounds = variant["figures"]["time"]["rounds"]
        variant["figures"]["real_tokens_per_second"] = figures.spread(
            [tokens / each for each in rounds], "count/second"
        )
    return outcome


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    shrink = 4 if conditions.quick else 1
    texts = (1024 if conditions.accelerated else 64) // shrink
    for dtype in DTYPES:
        model = load(conditions.model, Placement.choose(str(conditions.device), dtype), max_tokens=lengths.LONGEST)
        for shape, draw in SHAPES.items():
            for by_length in (False, True):
                found = np.maximum(draw(texts, conditions.seed) // shrink, 1)
                budget = model.placement.step_tokens // shrink
                case = case_of(model, shape, found, conditions.seed, budget, by_length=by_length)
                yield measured(case, conditions)


ABLATION = Ablation(
    letter="f",
    idea="sequences packed end to end, against padding to the longest of a step",
    how=(
        "the same steps through the worker's trunk: packed as it runs, and padded with a masked dense attention "
        "(written out or fused as the packed one), so that linear layers are the same; then a mean over real tokens"
    ),
    measure=measure,
)
