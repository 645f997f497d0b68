"""`--dtype fastest`: loads a model in the fastest number format of this processor that keeps its vectors close enough.

Speeds are those of products, measured at load. Cosines are those of what would serve: the model is loaded in float32,
then in the fastest other format, and in the next one where that is too far away.
"""

import gc
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, cast

import torch

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.cpu import library
from gpu_worker.model.format_judge import FormatJudge
from gpu_worker.model.loading import Model
from gpu_worker.model.tune import format_speeds
from gpu_worker.model.tune.format_speeds import SETTINGS, USUAL, fastest, floored
from gpu_worker.model.tune.linear import Linear
from shared.errors import ModelRefused


class LoadModel(Protocol):
    """Loads the model that the settings name; raises ModelRefused."""

    def __call__(self, placement: Placement, *, linear: Linear, judge: FormatJudge) -> Model: ...


def load_fastest(load: LoadModel, placement: Placement, least_cosine: float) -> Model:
    """Loads a model in the fastest format in which every probe's vector keeps a cosine to that in float32.

    `placement` is in float32, on a processor. Raises ModelRefused where the model cannot be served in float32.
    """
    kernels, judge = library.load(), FormatJudge(least=least_cosine)
    seconds, refusals = dict(format_speeds.product_seconds(kernels)), dict[str, str]()
    unmeasured = "" if seconds else kernels.missing

    def load_in(name: str, dtype: str) -> Model:
        gc.collect()  # the modules of a model that was left refer to each other
        judge.format, linear = name, "int8" if name == "int8" else "auto"
        return load(replace(placement, dtype=getattr(torch, dtype)), linear=cast(Linear, linear), judge=judge)

    model: Model | None = load_in(USUAL, USUAL)
    while (name := fastest(near := _near(seconds, judge))) != USUAL:
        model = None  # two models at once might not fit
        try:
            model = load_in(name, _numbers(near) if name == "int8" else name)
            break
        except ModelRefused as refused:
            refusals[name] = str(refused)
            del seconds[name]
    model = model or load_in(USUAL, USUAL)
    return replace(model, formats=_reason(judge, refusals, unmeasured))


def _near(seconds: Mapping[str, float], judge: FormatJudge) -> dict[str, float]:
    """The formats that keep the cosine, as far as is known so far."""
    return {name: taken for name, taken in seconds.items() if judge.keeps(name)}


def _numbers(seconds: Mapping[str, float]) -> str:
    """The format of the numbers between layers in int8: bfloat16 where that is clearly faster, too, else float32."""
    return fastest({name: taken for name, taken in seconds.items() if name != "int8"})


def _reason(judge: FormatJudge, refusals: dict[str, str], unmeasured: str) -> str:
    """Why the format that the judge saw last serves, for log and card. `unmeasured`: why there are no speeds."""
    if unmeasured:
        return f"{USUAL}: no other format was measured, for want of the processor's kernels: {unmeasured}"
    others = {name: f"cosine {floored(judge.cosines[name])}" for name in SETTINGS if name in judge.cosines} | refusals
    chosen = judge.format
    least = f", {others.pop(chosen)}" if chosen in others else ""
    reason = f"{chosen}: the fastest format here whose cosines to float32 are at least {judge.least}{least}"
    return "; ".join([reason, *(f"{name}: {why}" for name, why in others.items())])
