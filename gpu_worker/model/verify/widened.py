"""Half-precision weights as float32, for the gates' exact runs. Knows no probes and no tolerances.

Half numbers are float32 numbers too, so nothing is rounded on the way. Weights converted all at once would need twice
the memory that the model is served in; so each is converted by the operator that reads it, and freed when that is done.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors
from torch.utils._pytree import tree_leaves, tree_map_only

T = TypeVar("T")

aten = torch.ops.aten
CUT = {aten.chunk.default, aten.detach.default, aten.select.int, aten.slice.Tensor, aten.split.Tensor}
CUT |= {aten.split_with_sizes.default, aten.t.default, aten.transpose.int, aten.unbind.int}
"""What names a part of a weight, such as one expert of many: that part alone is converted, once it is read."""
LOOKED_UP = {aten.embedding.default, aten.index_select.default, aten.index.Tensor}
"""What copies rows of a weight: those alone are converted. A table of a large vocabulary is larger than a layer."""


class Widened(Tensor):
    """A half-precision tensor, `rounded`, that is float32 to whoever looks at it or computes with it."""

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
        """Raises TypeError where a weight is to be changed, which nobody would see."""
        keywords = keywords or {}
        first = arguments[0] if arguments else None
        if operator in CUT and isinstance(first, Widened):
            parts = operator(first.rounded, *arguments[1:], **keywords)
            if all(_lie_together(part) for part in tree_leaves(parts)):
                return tree_map_only(Tensor, Widened, parts)
        if operator in LOOKED_UP and isinstance(first, Widened) and not _any_widened((arguments[1:], keywords)):
            return operator(first.rounded, *arguments[1:], **keywords).float()
        if any(isinstance(each, Widened) for each in _written(operator, arguments, keywords)):
            raise TypeError(f"{operator} changes a weight")
        arguments, keywords = tree_map_only(Widened, widen, (arguments, keywords))
        return operator(*arguments, **keywords)


def widen(weight: Widened) -> Tensor:
    """The same numbers in float32, laid out alike; they live as long as somebody holds them."""
    return weight.rounded.float().requires_grad_(weight.requires_grad)  # by which matmul picks its way


def in_float32(model: nn.Module, compute: Callable[[], T]) -> T:
    """What `compute` gives while all half-precision weights of the model are float32, and themselves again afterwards.

    A class that cannot run on weights that are converted as they are read has all of them converted at once.
    """
    try:
        with as_read(model):
            return compute()
    except Exception:  # of foreign code, which may look at memory itself; what is wrong for another reason fails again
        with at_once(model):
            return compute()


@contextmanager
def as_read(model: nn.Module) -> Iterator[None]:
    """Every weight is float32 while an operator reads it. Tied ones, and those that others look at, are so as well."""
    swapped: list[tuple[nn.Parameter, Widened]] = []
    try:
        for parameter in _half(model):
            with torch.inference_mode():  # else a part made in that mode would not be taken for a view of it
                widened = Widened(parameter.data, parameter.requires_grad)
            widened._is_param = True  # to isinstance it is an nn.Parameter still
            swap_tensors(parameter, widened)
            swapped.append((parameter, widened))
        yield
    finally:
        for parameter, widened in swapped:
            swap_tensors(parameter, widened)


@contextmanager
def at_once(model: nn.Module) -> Iterator[None]:
    """All weights in float32 for a while: the obvious twin."""
    kept = [(parameter, parameter.dtype) for parameter in _half(model)]
    try:
        for parameter, _ in kept:
            parameter.data = parameter.data.float()
        yield
    finally:
        for parameter, dtype in kept:
            parameter.data = parameter.data.to(dtype)


def _half(model: nn.Module) -> list[nn.Parameter]:
    """Weights that float32 holds exactly; each once, however many modules share it."""
    return [each for each in model.parameters() if each.is_floating_point() and each.element_size() < 4]


def _lie_together(part: Any) -> bool:
    """Else its float32 copy would be laid out otherwise than that part of a float32 weight."""
    return not isinstance(part, Tensor) or torch.empty_like(part, device="meta").stride() == part.stride()


def _any_widened(values: Any) -> bool:
    return any(isinstance(each, Widened) for each in tree_leaves(values))


def _written(operator: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Iterator[Any]:
    """What an operator changes in place."""
    for place, each in enumerate(operator._schema.arguments):
        if each.is_write:
            value = arguments[place] if place < len(arguments) else keywords.get(each.name)
            yield from tree_leaves(value)
