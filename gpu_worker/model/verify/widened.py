"""Half-precision weights as float32, for the gates' exact runs. Knows no probes and no tolerances.

Every half-precision number is also a float32 number, so the conversion rounds nothing. Converting all weights at once
would need twice the memory that the model needs later; so the operator that reads a weight converts it, and frees the
copy afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors
from torch.utils._pytree import tree_map_only

T = TypeVar("T")

aten = torch.ops.aten
VIEWS = {aten.detach.default, aten.select.int, aten.t.default, aten.transpose.int, aten.unbind.int}
"""Operators that take a part of a weight, such as one expert of many: only that part is converted, when it is read."""
LOOKED_UP = {aten.embedding.default, aten.index_select.default, aten.index.Tensor}
"""Operators that copy rows of a weight: only these rows are converted, since an embedding table may be very large."""
DEPTH = 128
"""Numbers of a sum by which oneDNN is asked whether it multiplies float32 without rounding."""
BATCH = 12
"""Products of a test of oneDNN."""
EXACT = 1e-5
"""Largest error of oneDNN, as a share of the largest product. Factors rounded to bfloat16 are off by a hundred times as
much."""


class Widened(Tensor):
    """A half-precision tensor, `rounded`, that looks like a float32 tensor and computes like one."""

    rounded: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, rounded: Tensor, requires_grad: bool = False) -> "Widened":
        made: Widened = Tensor._make_wrapper_subclass(
            cls,
            rounded.shape,
            rounded.stride(),
            rounded.storage_offset(),
            dtype=torch.float32,
            device=rounded.device,
            requires_grad=requires_grad,
        )
        made.rounded = rounded
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Widened({self.rounded!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operator: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Runs an operator on float32 copies of its widened arguments.

        Raises TypeError where the operator changes a weight in place: only the copy would change.
        """
        keywords = keywords or {}
        if arguments and isinstance(arguments[0], Widened):
            if operator._schema.is_mutable:
                raise TypeError(f"{operator} changes a weight")
            rounded = arguments[0].rounded
            if operator in VIEWS:
                return tree_map_only(Tensor, Widened, operator(rounded, *arguments[1:], **keywords))
            if operator in LOOKED_UP:
                return operator(rounded, *arguments[1:], **keywords).float()
        arguments, keywords = tree_map_only(Widened, widen, (arguments, keywords))
        return operator(*arguments, **keywords)


def widen(weight: Widened) -> Tensor:
    """A float32 copy of the same numbers in the same memory layout."""
    # Matmul chooses its kernel by `requires_grad`.
    return weight.rounded.float().requires_grad_(weight.requires_grad)


def in_float32(model: nn.Module, compute: Callable[[], T]) -> T:
    """Returns the result of `compute`, which runs while all half-precision weights of the model are float32.

    The weights are converted as they are read; all at once where the model's class cannot run so. Afterwards they are
    half precision again. On a processor oneDNN multiplies where it rounds nothing: two to three times as fast.
    """
    device = next(model.parameters()).device
    exact = device.type == "cpu" and onednn_is_exact(DEPTH)
    with onednn_products() if exact else nullcontext():
        try:
            with as_read(model):
                return compute()
        except Exception:  # foreign code may access memory directly; an error of any other kind is raised again below
            with at_once(model):
                return compute()


@contextmanager
def as_read(model: nn.Module) -> Iterator[None]:
    """Makes every half-precision weight float32 to the operators that read it; tied and shared weights too."""
    swapped: list[tuple[nn.Parameter, Widened]] = []
    try:
        for parameter in _half_precision(model):
            with torch.inference_mode():  # a part made in that mode must count as a view of it
                widened = Widened(parameter.data, parameter.requires_grad)
            widened._is_param = True  # so that isinstance still takes it for an nn.Parameter
            swap_tensors(parameter, widened)
            swapped.append((parameter, widened))
        yield
    finally:
        for parameter, widened in swapped:
            swap_tensors(parameter, widened)


@contextmanager
def at_once(model: nn.Module) -> Iterator[None]:
    """Converts all half-precision weights to float32, and back at the end: the simple version of `as_read`."""
    converted = [(parameter, parameter.dtype) for parameter in _half_precision(model)]
    try:
        for parameter, _ in converted:
            parameter.data = parameter.data.float()
        yield
    finally:
        for parameter, dtype in converted:
            parameter.data = parameter.data.to(dtype)


def _half_precision(model: nn.Module) -> list[nn.Parameter]:
    """Floating-point weights with fewer bits than float32, without repetition where modules share one."""
    return [weight for weight in model.parameters() if weight.is_floating_point() and weight.element_size() < 4]


@contextmanager
def onednn_products() -> Iterator[None]:
    """Lets oneDNN multiply float32, where PyTorch would take another library: twice as fast on AMD from 64 tokens on.

    PyTorch offers this only as permission to round factors to bfloat16. oneDNN does not round on processors without
    matrix units for bfloat16; callers must have checked that (`onednn_is_exact`). The setting belongs to the process,
    not to the thread: only one thread at a time may be in here.
    """
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    usual = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = usual


def onednn_is_exact(depth: int) -> bool:
    """Tests whether `onednn_products` multiply in full float32, over sums of `depth` numbers; matrix units do not."""
    generator = torch.Generator().manual_seed(0)
    for length in (64, 512):
        query, key, value = (torch.randn(BATCH, length, depth, generator=generator) for _ in range(3))
        weights = torch.rand(BATCH, length, length, generator=generator)
        for left, right in ((query, key.transpose(1, 2)), (weights, value)):
            try:
                with onednn_products():
                    product = torch.bmm(left, right)
            except (AttributeError, RuntimeError):  # another build of PyTorch
                return False
            expected = torch.bmm(left.double(), right.double())
            if (product - expected).abs().max() > EXACT * expected.abs().max():
                return False
    return True
