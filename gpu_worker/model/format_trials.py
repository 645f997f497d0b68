"""What cosines a model would keep in other number formats: tried on a copy, before anything is changed.

A copy takes half of the weights' memory at most, for as long as the trial lasts. It runs as transformers wrote the
model, on a few short probes: little beside the runs of the gate.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.tune import format_speeds, int8
from gpu_worker.model.verify.closeness import LOWEST
from gpu_worker.model.verify.final_rows import FinalRows
from gpu_worker.model.verify.gate import Reference

MOST_WEIGHTS = 1_000_000_000
"""Most weights of a model that is tried. In bfloat16 they take 2 GB beside it while the trial lasts."""
LONGEST, TEXTS = 64, 8
"""Most tokens of a text that is tried, and most texts."""
TOO_LARGE = f"not measured above {MOST_WEIGHTS / 10**9:.0f} billion weights"
"""Why a larger model has no cosines."""


class FormatTrials:
    """The formats in which a model would be clearly faster on this processor, with the cosines that it would keep.

    `cosines`: by format, the least cosine of a probe to float32; empty where the model is not tried.
    """

    def __init__(self, model: Any, heads: Heads, reference: Reference, kernels: KernelLibrary, chosen: str) -> None:
        """Tries the model, the encoder as it was loaded. `heads` pool its hidden states. `chosen` names the format that
        it is to run in."""
        self._seconds, self._chosen = format_speeds.product_seconds(kernels), chosen
        ratios = format_speeds.faster(self._seconds, chosen)
        self._untried = TOO_LARGE if sum(weight.numel() for weight in model.parameters()) > MOST_WEIGHTS else ""
        self.cosines = {} if self._untried or not ratios else trial_cosines(model, heads, reference, ratios)
        self._ratios = {name: ratio for name, ratio in ratios.items() if self._untried or name in self.cosines}

    @property
    def advice(self) -> str:
        """A line on faster formats; empty where there are none."""
        return format_speeds.advice(self._ratios, self.cosines, self._untried)

    @property
    def warning(self) -> str:
        """A line where the chosen format is slower than float32; empty where it is not."""
        return format_speeds.warning(self._seconds, self._chosen)


def trial_cosines(model: Any, heads: Heads, reference: Reference, names: Iterable[str]) -> dict[str, float]:
    """The least cosine of a probe to float32, for each of the formats `names` in which the model can run.

    A format in which a text falls under 0.97, so that int8 would be refused, counts as one in which it cannot.
    """
    texts, dtype = reference.probes.texts, next(model.parameters()).dtype
    numbers = [number for number in reference.whole if len(texts[number]) <= LONGEST]
    numbers = [*numbers[: TEXTS // 2], *numbers[TEXTS // 2 :][-TEXTS // 2 :]]  # random ids, then what people write
    chosen = [texts[number] for number in numbers]

    def rows_of(hidden: Tensor) -> FinalRows:
        return FinalRows.of(heads, hidden.to(dtype), chosen, vectors_alone=True)

    expected = rows_of(reference.exact_of(numbers))
    cosines = {}
    for name in names:
        try:
            copy = _rounded_copy(model, name)
            with torch.inference_mode():
                rows = rows_of(reference.run_one_by_one(copy, numbers))
        except Exception:  # foreign code may fail anywhere in another format; then it is no advice
            continue
        cosine = rows.least_cosine(expected)
        if cosine >= LOWEST:
            cosines[name] = cosine
    return cosines


def _rounded_copy(model: Any, name: str) -> Any:
    """A copy of a model with weights in the format `name`: of its linear layers for int8, which shares all others.

    A copy, since a class may keep numbers in the format that it ran in last, as CTRL's keeps its positions.
    """
    if name == "int8":
        copy = deepcopy(model, {id(weight): weight for weight in model.parameters()})
        int8.install(copy)
        return copy
    dtype, weights = getattr(torch, name), model.parameters()
    halves = {
        id(weight): nn.Parameter(weight.detach().to(dtype), False) for weight in weights if weight.is_floating_point()
    }
    return deepcopy(model, halves)
