"""Makes the kernels' float32 layers of a model run by products of bfloat16, where that is faster and near enough.

The model passed the exact gate with float32's own products, which serve where no other products do.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.tune import split
from gpu_worker.model.tune.linear import undoing
from gpu_worker.model.verify.nearness import NearnessGate
from shared.errors import ModelRefused

OWN = "float32"
"""Name of float32's own products among the formats that are measured."""


def with_fastest_products(
    base: nn.Module, mode: ExecutionMode, gate: NearnessGate, seconds: Mapping[str, float]
) -> tuple[ExecutionMode, str]:
    """Replaces the layers of an encoder in place by the fastest ones that pay and pass the gate.

    `seconds` as `format_speeds.product_seconds` gives them. Returns the mode with findings, and the name of the
    products that serve; an empty name where no others were tried.
    """
    undo, name = undoing(base), ""
    for parts in split.paying(seconds):
        if not split.install(base, parts):
            break
        name = split.NAMES[parts]
        try:
            finding = f"{name} serve: {gate.check(mode.encoder)}"
            return replace(mode, findings=(*mode.findings, finding)), name
        except ModelRefused as refused:
            undo()
            name, finding = OWN, f"no {name}: {refused}"
            mode = replace(mode, findings=(*mode.findings, finding))
    return mode, name
