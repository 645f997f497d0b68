"""The model's own run, as sentence-transformers feeds and calls it: the inputs that it gets, the implementation of
attention that transformers chooses, and, for exact runs, half-precision weights as float32.

By default attention is PyTorch's fused one (sdpa) where the class supports it and its config asks for nothing else,
otherwise the written-out one (eager). For some classes and options the two compute different things; then the default
is right.

Every half-precision number is also a float32 number, so converting weights rounds nothing. Converting all at once would
need twice the memory that the model needs later; so the operator that reads a weight converts it, and frees the copy
afterwards.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import swap_tensors
from torch.utils._pytree import tree_map_only

from gpu_worker.model.encoder.encoder import hidden_of, takes_token_types
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.texts import Counts, Ids, TokenTypes
from gpu_worker.repository.files import first_line
from gpu_worker.repository.tokenizer import IDS, MASK, TYPES, TokenizerInputs, WrittenInputs
from gpu_worker.repository.weights import OWN_ATTENTION
from shared.errors import ModelRefused

FUSED, WRITTEN_OUT = OWN_ATTENTION
"""Transformers' names of the two implementations of attention: sdpa and eager."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """Turns token ids into the inputs that a model's own tokenizer class would make.

    `types` are the tokenizer's token types, also those that are all 0; None where the model reads none. `written` are
    texts, and pairs for a model of pairs, with the inputs that the tokenizer class made. `masks` says whether the
    tokenizer makes a mask for a single text.
    """

    types: TokenTypes | None = None
    written: tuple[WrittenInputs, ...] = ()
    masks: bool = True

    def alone(self, probes: Probes, number: int) -> dict[str, Counts]:
        """Inputs [1, L] by name of one text; of a text that the tokenizer made, all that it made."""
        written = probes.inputs(number)
        if written is not None:
            return {name: values[None] for name, values in written.items()}
        return self.inputs([probes.texts[number]], [probes.tails[number]], [probes.second_segments[number]])

    def padded(self, model: Any, texts: Sequence[Ids]) -> Tensor:
        """Hidden states [B, L, H] of texts that are padded to the longest. Raises ModelRefused, see `run`."""
        zeros = [0] * len(texts)
        return run(model, self.inputs(texts, zeros, zeros))

    def inputs(self, texts: Sequence[Ids], tails: Sequence[int], second_segments: Sequence[int]) -> dict[str, Counts]:
        """Inputs [B, L] by name: ids padded by 0, a mask, and token types where the model is fed any.

        Texts without padding and tails get a mask only where the tokenizer makes one.
        """
        ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
        mask, types, has_types = np.zeros_like(ids), np.zeros_like(ids), False
        for row, (text, tail, second) in enumerate(zip(texts, tails, second_segments, strict=True)):
            ids[row, : len(text)], mask[row, : len(text) - tail] = text, 1
            ends, seconds = np.array([0, len(text)]), np.array([second])
            text_types = None if self.types is None else self.types.of(text, ends, seconds)
            if text_types is not None:
                types[row, : len(text)], has_types = text_types, True
        masks = {MASK: mask} if self.masks or not mask.all() else {}
        return {IDS: ids} | masks | ({TYPES: types} if has_types else {})


NO_TYPES = Feeding()
"""Feeding of a model that reads no token types."""


def feeding_of(model: Any, inputs: TokenizerInputs, *, pairs: bool = False, expands: bool = False) -> Feeding:
    """Finds what a bare model is fed. `pairs`: whether it reads pairs; `expands`: whether queries are expanded.

    Raises ModelRefused where its tokenizer makes inputs that cannot be fed here.
    """
    parameters = inspect.signature(model.forward).parameters
    for name in dict.fromkeys(name for written in inputs.texts for name in written.inputs):
        if name in parameters and name not in (IDS, MASK, TYPES):
            raise ModelRefused(f"its tokenizer gives {name} beside token ids, and {type(model).__name__} reads them")
    masks = all(MASK in written.inputs for written in inputs.texts)
    if inputs.types is None or not takes_token_types(model):
        return Feeding(written=inputs.texts, masks=masks)
    if pairs and not inputs.types_hold_for_pairs:
        raise ModelRefused("its tokenizer gives token types of pairs that do not tell where the second text begins")
    if expands and inputs.types.text.types != {0}:
        raise ModelRefused("its tokenizer gives token types that are not 0, and its queries are expanded")
    written = inputs.texts + (inputs.pairs if pairs else ())
    return Feeding(types=replace(inputs.types, zeros=True), written=written, masks=masks)


def run(model: Any, inputs: Mapping[str, Counts]) -> Tensor:
    """Last hidden states [B, L, H] of inputs [B, L] by name.

    Raises ModelRefused where the model's own code fails for any reason.
    """
    try:
        return hidden_of(model, accepted(model, inputs))
    except ModelRefused:
        raise
    except Exception as error:
        length = inputs[IDS].shape[1]
        raise ModelRefused(
            f"{type(model).__name__} cannot run {length} token ids by itself: {first_line(error)}"
        ) from error


def run_alone(model: Any, feeding: Feeding, probes: Probes, number: int) -> Tensor:
    """Computes the hidden states [L, H] float32 of the text of this number. Raises ModelRefused, see `run`."""
    return run(model, feeding.alone(probes, number))[0].float()


def accepted(model: Any, inputs: Mapping[str, Counts]) -> dict[str, Any]:
    """Selects the inputs as tensors, and `return_dict`, that a model's forward accepts: those it names, or all if it
    has `**keywords`."""
    device = next(model.parameters()).device
    parameters = inspect.signature(model.forward).parameters
    accepts_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    offered = {name: torch.from_numpy(values).to(device) for name, values in inputs.items()} | {"return_dict": True}
    return {name: value for name, value in offered.items() if accepts_all or name in parameters}


def default_of(model: Any) -> str:
    """Name of the attention that a model runs at present, which after loading is its default."""
    return str(model.config.get_text_config()._attn_implementation or WRITTEN_OUT)


def other_than(model: Any, implementation: str) -> str | None:
    """Name of the other implementation that a model's class supports; None where it supports only this one."""
    if implementation == FUSED:
        return WRITTEN_OUT
    return FUSED if getattr(model, "_supports_sdpa", False) else None


def run_by(model: Any, implementation: str) -> None:
    """Makes a model run this implementation from now on.

    Classes that do not take the name from transformers' table read it from their config.
    """
    if type(model)._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    else:
        model.config._attn_implementation = implementation


@contextmanager
def attending_by(model: Any, implementation: str) -> Iterator[None]:
    """Makes a model run this implementation inside the `with` block."""
    before = default_of(model)
    run_by(model, implementation)
    try:
        yield
    finally:
        run_by(model, before)


class Widened(Tensor):
    """A half-precision tensor, `rounded`, that looks like a float32 tensor and computes like one."""

    rounded: Tensor
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, rounded: Tensor, requires_grad: bool = False) -> "Widened":
        widened: Widened = Tensor._make_wrapper_subclass(
            cls,
            rounded.shape,
            rounded.stride(),
            rounded.storage_offset(),
            dtype=torch.float32,
            device=rounded.device,
            requires_grad=requires_grad,
        )
        widened.rounded = rounded
        return widened

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
    """Makes a float32 copy of the same numbers in the same memory layout."""
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
    """Finds the floating-point weights with fewer bits than float32, without repetition where modules share one."""
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
