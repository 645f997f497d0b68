"""PyTorch's operators in one order: while `FixedOrder` is entered, a row's bits do not depend on the rows beside it.

PyTorch chooses kernels of products by the number of rows, and each of them sums in an order of its own. Its activations
compute some numbers by another function, those at the end of a tensor and of a thread's part. Here products run by the
processor's kernels, activations run on tensors without such ends, and operators that have no fixed order are refused by
their names. All other operators of a model's layers read one row at a time, or sum in the order of the rows.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.kernels.cpu.products import product, up_to
from shared.errors import ModelRefused

Operator = Callable[..., Any]
VECTORS = 64
"""PyTorch's activations run on so many numbers at once, of 16 bits; on half as many of 32 bits."""
ONE_PART = 32_768
"""PyTorch's threads share activations of so many numbers and more."""
ACTIVATIONS = (
    *("gelu", "silu", "sigmoid", "tanh", "softplus", "mish", "elu", "celu", "selu", "exp", "exp2", "expm1", "log"),
    *("log1p", "log2", "log10", "erf", "erfc", "sin", "cos", "rsqrt", "sqrt", "reciprocal", "hardswish", "hardsigmoid"),
    "pow",
)
UNORDERED = (
    *("baddbmm", "addbmm", "addmv", "addr", "dot", "vdot", "mv", "_grouped_mm", "_int_mm", "_scaled_mm", "_trilinear"),
    *("convolution", "_convolution", "mkldnn_convolution", "mkldnn_linear", "glu", "log_sigmoid_forward", "_fft_r2c"),
    *("_scaled_dot_product_flash_attention_for_cpu", "native_batch_norm", "native_group_norm", "_fft_c2c"),
)
"""Operators without a fixed order."""
KNOWN_SAFE = (
    *("reshape", "to", "contiguous", "flatten", "unflatten", "expand_as", "chunk", "numpy_T", "type_as", "view_as"),
    *("layer_norm", "softmax", "dropout", "embedding_bag"),
)
"""Operators made of others, none of which needs a look."""
NAMESPACES = ("aten", "prim", "prims", "selvage")

_in_vectors = threading.local()
"""Whether the thread is in `in_whole_vectors`: its `now`."""


class FixedOrder(TorchDispatchMode):
    """A context in which operators run in one order. `used`: names of the operators that it changed so far."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: set[str] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        treatment = _treatments.get(operator)
        if treatment is None:
            treatment = _treatments[operator] = _treatment_of(operator)
        if treatment is _as_it_is:
            return operator(*arguments, **(options or {}))
        if treatment is _by_parts:
            with self:
                return operator.decompose(*arguments, **(options or {}))
        if treatment in ACTIVATING and _stays(operator, arguments, options or {}):
            return operator(*arguments, **(options or {}))
        self.used.add(_name(operator))
        return treatment(operator, *arguments, **(options or {}))


_treatments: dict[Any, Operator] = {}
"""What is done with each operator that was met so far."""


def _treatment_of(operator: Any) -> Operator:
    name = _name(operator)
    if operator.namespace not in NAMESPACES:
        return _refused
    if operator.namespace != "aten":
        return _as_it_is
    for names, treatment in ((PRODUCTS, None), (ACTIVATIONS, _activation), (UNORDERED, _refused)):
        if name in names:
            return treatment or PRODUCTS[name]
        if name.removesuffix("_") in names and name.endswith("_"):
            return _activation_in_place if treatment is _activation else _refused
    return _by_parts if operator._can_decompose() and name not in KNOWN_SAFE else _as_it_is


def _name(operator: Any) -> str:
    return str(operator._schema.name).partition("::")[2]


def _as_it_is(operator: Any, *arguments: Any, **options: Any) -> Any:
    return operator(*arguments, **options)


def _by_parts(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Stands for operators that are made of others, which are looked at one by one."""
    raise AssertionError


def _refused(operator: Any, *_: Any, **__: Any) -> Any:
    raise ModelRefused(f"{operator} has no fixed order of sums")


def _mm(operator: Any, left: Tensor, right: Tensor, **options: Any) -> Any:
    """Multiplies [N, K] and [K, M] into [N, M]."""
    if options or left.dtype not in (torch.float32, torch.bfloat16):
        return _refused(operator)
    return product(left, right.t())


def _addmm(operator: Any, added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Adds [M] or [N, M] to a product [N, M]."""
    if (beta, alpha) != (1, 1):
        return _refused(operator)
    return _mm(operator, left, right) + added


def _bmm(operator: Any, left: Tensor, right: Tensor, **options: Any) -> Any:
    """Multiplies [B, N, K] and [B, K, M] into [B, N, M]; where K is 1 there is nothing to sum."""
    if left.shape[2] == 1:
        return operator(left, right, **options)
    return torch.stack([_mm(operator, *pair, **options) for pair in zip(left, right, strict=True)])


PRODUCTS: dict[str, Operator] = {"mm": _mm, "addmm": _addmm, "bmm": _bmm}


def _activation(operator: Any, x: Tensor, *arguments: Any, **options: Any) -> Any:
    """Runs a function of single numbers on a tensor that is filled up so that it has no end, in no thread."""
    if any(isinstance(argument, Tensor) for argument in (*arguments, *options.values())):
        return _refused(operator)
    return in_whole_vectors(lambda part: operator(part, *arguments, **options), x)


def in_whole_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Runs a function of single numbers so that PyTorch computes each of them alike: [...] -> [...].

    Inside of it a `FixedOrder` finds nothing to change.
    """
    before, _in_vectors.now = getattr(_in_vectors, "now", False), True
    try:
        return _filled_up(function, x)
    finally:
        _in_vectors.now = before


def _filled_up(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    step = VECTORS * torch.get_num_threads()
    count = x.numel()
    filled = up_to(count, step)
    if filled == count and not _is_shared_unevenly(count):
        return function(x.contiguous())
    flat = x.contiguous().view(-1)
    if filled > count:
        flat = F.pad(flat, (0, filled - count), value=1.0)
    if _is_shared_unevenly(filled):
        parts = flat.split(max(step, (ONE_PART - 1) // step * step))
        y = torch.cat([function(part) for part in parts])
    else:
        y = function(flat)
    return y[:count].view(x.shape)


def _is_shared_unevenly(count: int) -> bool:
    """Whether PyTorch shares so many numbers among fewer threads than there are, in parts of any length."""
    return ONE_PART <= count < ONE_PART * torch.get_num_threads()


def _stays(operator: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a call may run as it is: on whole numbers, or with a function that is even."""
    x, *others = arguments
    if not isinstance(x, Tensor) or not x.is_floating_point() or getattr(_in_vectors, "now", False):
        return True
    plain = all(isinstance(other, int | float | str) for other in (*others, *options.values()))
    return plain and _is_even(_function_of(operator), x.dtype, *others, **options)


@cache
def _is_even(function: Any, dtype: torch.dtype, *others: Any, **options: Any) -> bool:
    """Whether a function gives every number the same bits wherever it stands, found on numbers of all usual sizes.

    In half precision functions that differ in float32 round to the same numbers but for a few, so float32 counts too.
    """
    if dtype in (torch.bfloat16, torch.float16) and not _is_even(function, torch.float32, *others, **options):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=generator) * torch.logspace(-3, 1, 4096)
    x = torch.cat([x, x.abs()]).to(dtype)  # some functions take positive numbers only
    try:
        whole, spread = (function(numbers, *others, **options) for numbers in (x, x.repeat_interleave(2)[::2]))
        parts = torch.cat([function(part, *others, **options) for part in x.split(15)])
    except (RuntimeError, TypeError):  # it takes no such numbers, or more than them
        return False
    return all(torch.equal(other.nan_to_num(), whole.nan_to_num()) for other in (spread, parts))


def _activation_in_place(operator: Any, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return x.copy_(_activation(_function_of(operator), x, *arguments, **options))


def _function_of(operator: Any) -> Any:
    """The operator that gives a new tensor, where this one writes into its argument."""
    return getattr(getattr(torch.ops.aten, _name(operator).removesuffix("_")), operator._overloadname)


ACTIVATING = (_activation, _activation_in_place)
