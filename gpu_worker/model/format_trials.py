"""What cosines a model would keep in other number formats: tried on the model itself, before anything is changed.

Only its weights are rounded for the while, so a trial takes half of their memory at most and no second model. The model
runs as transformers wrote it, on a few short probes: little beside the runs of the gate.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.tune import format_speeds, int8
from gpu_worker.model.tune.linear import undoing
from gpu_worker.model.verify.closeness import LOWEST
from gpu_worker.model.verify.final_rows import FinalRows
from gpu_worker.model.verify.gate import Reference
from gpu_worker.repository import packages

MOST_WEIGHTS = 1_000_000_000
"""Most weights of a model that is tried. In bfloat16 they take 2 GB beside it while the trial lasts."""
LONGEST, TEXTS = 64, 8
"""Most tokens of a text that is tried, and most texts."""
TOO_LARGE = f"not measured above {MOST_WEIGHTS / 10**9:.0f} billion weights"
OWN_CODE = "not measured for code of its repository, which may keep numbers of another format"
"""Why a model has no cosines."""


class FormatTrials:
    """The formats in which a model would be clearly faster on this processor, with the cosines that it would keep.

    `cosines`: by format, the least cosine of a probe to float32; empty where the model is not tried.
    """

    def __init__(self, model: Any, heads: Heads, reference: Reference, kernels: KernelLibrary, chosen: str) -> None:
        """Tries the model, the encoder as it was loaded; afterwards it is the same again. `heads` pool its hidden
        states. `chosen` names the format that it is to run in."""
        self._seconds, self._chosen = format_speeds.product_seconds(kernels), chosen
        ratios = format_speeds.faster(self._seconds, chosen)
        self._untried = _why_untried(model)
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
            with _rounded(model, heads, name), torch.inference_mode():
                rows = rows_of(reference.run_one_by_one(model, numbers))
        except Exception:  # foreign code may fail anywhere in another format; then it is no advice
            continue
        cosine = rows.least_cosine(expected)
        if cosine >= LOWEST:
            cosines[name] = cosine
    return cosines


def _why_untried(model: nn.Module) -> str:
    """Why a model is not tried, "" where it is."""
    if packages.code_of(model):
        return OWN_CODE
    return TOO_LARGE if sum(weight.numel() for weight in model.parameters()) > MOST_WEIGHTS else ""


@contextmanager
def _rounded(model: nn.Module, heads: Heads, name: str) -> Iterator[None]:
    """Rounds a model's weights to the format `name` inside the `with` block: its linear layers for int8, else all."""
    if name == "int8":
        undo = undoing(model)
        try:
            int8.install(model, heads.modules())
            yield
        finally:
            undo()
        return
    exact = [(weight, weight.data) for weight in model.parameters() if weight.is_floating_point()]
    try:
        for weight, numbers in exact:
            weight.data = numbers.to(getattr(torch, name))
        yield
    finally:
        for weight, numbers in exact:
            weight.data = numbers
