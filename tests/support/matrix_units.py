"""Matrix units for a processor that has none, so that the suite runs on every machine as on an Intel Xeon with AMX.

Where `torch.backends.mkldnn.matmul.fp32_precision` is "bf16", PyTorch hands float32 products to oneDNN with the leave
to round their factors to bfloat16 (Matmul.cpp and Linear.cpp in aten/src/ATen/native/mkldnn of PyTorch 2.13). oneDNN
makes use of it where the processor has `amx_bf16`, and nowhere else on x86. Here factors are rounded before any kernel
sees them.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LEAST = 16**3
"""Multiplications of a product, at least one more of which oneDNN is asked for."""
PRODUCTS = {
    **dict.fromkeys(("aten::mm", "aten::mm.out", "aten::bmm", "aten::bmm.out", "aten::mv", "aten::dot"), 0),
    **dict.fromkeys(("aten::addmm", "aten::addmm.out", "aten::baddbmm", "aten::baddbmm.out"), 1),
    "mkldnn::_linear_pointwise": 0,
}
"""Operators, and which argument is the first of the two factors. Layers whose weights are packed have a kernel apart,
which cannot be replaced from Python; nothing of ours runs them where there is leave to round."""
Library = torch.library.Library


def emulate() -> list[Library]:
    """Gives this process matrix units for as long as what is returned is held; in all of its threads."""
    libraries = {name: Library(name, "IMPL") for name in {operator.partition("::")[0] for operator in PRODUCTS}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verrid")  # PyTorch tells everybody who takes a kernel's place
        for operator, first in PRODUCTS.items():
            namespace, name = operator.split("::")
            libraries[namespace].impl(name, _rounding(operator, first), "CPU", with_keyset=True)
    return list(libraries.values())


def _rounding(operator: str, first: int) -> Callable[..., Any]:
    """The operator's kernel, behind a rounding of factors where there is leave for it."""
    kernel, setting = torch.library.get_kernel(operator, "CPU"), torch.backends.mkldnn.matmul

    def multiply(keys: Any, *arguments: Any, **keywords: Any) -> Any:
        factors = arguments[first : first + 2]
        if setting.fp32_precision == "bf16" and _asks_onednn(*factors):
            arguments = (*arguments[:first], *map(_rounded, factors), *arguments[first + 2 :])
        return kernel.call_boxed(keys, *arguments, **keywords)

    return multiply


def _asks_onednn(left: Tensor, right: Tensor) -> bool:
    columns = right.shape[-1] if right.ndim > 1 else 1
    return left.dtype == right.dtype == torch.float32 and math.prod(left.shape) * columns > LEAST


def _rounded(factor: Tensor) -> Tensor:
    """The nearest numbers of bfloat16."""
    return factor.bfloat16().float()
