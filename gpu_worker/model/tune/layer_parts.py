"""The parts of an encoder layer: found by their names (`part_names`), recognised by what they compute."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.device.memory import ran_out
from gpu_worker.kernels.attention.native import HEAD_STEP
from gpu_worker.kernels.cpu.products import DEPTH
from gpu_worker.model.tune.blocked_linear import bias_of, block_of
from gpu_worker.model.tune.linear import gelu_kind
from gpu_worker.model.tune.part_names import NAMES, PartNames

ACTIVATIONS = {"none": 1, "tanh": 2}
"""Numbers of the kernels' activations (`source/linear.h`) by the kind of GELU."""
RELU, SILU = 3, 4
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest error of a normalisation in a number format, as a share of its numbers and of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormNumbers:
    """A normalisation as the kernels take it: `numbers` [2, width] float32, weight and bias; empty for none."""

    numbers: Tensor
    epsilon: float = 0.0
    centred: bool = False

    @property
    def kind(self) -> tuple[float, bool]:
        """What all normalisations of a layer must have in common."""
        return self.epsilon, self.centred


NO_NORM = NormNumbers(numbers=torch.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """The parts of a layer.

    `norms`: before attention, behind it, before the feed-forward, and behind it. `head_norms`: of heads of queries and
    of keys. `head` is the width of a head. Where the layer is `gated`, half of each block of `inner` is the gate's.
    """

    norms: tuple[NormNumbers, ...]
    head_norms: tuple[NormNumbers, ...]
    inputs: tuple[nn.Linear, ...]
    output: nn.Linear
    inner: nn.Linear
    gated: bool
    down: nn.Linear
    activation: int
    head: int
    post_normalised: bool

    @property
    def norm_kind(self) -> tuple[float, bool]:
        """Epsilon of all normalisations, and whether those of whole rows are centred."""
        return next(norm.kind for norm in self.norms if norm.numbers.numel())

    @property
    def form(self) -> str:
        """Where the layer normalises, how, and whether its feed-forward is gated; for log and pages."""
        before, behind, *_ = (bool(norm.numbers.numel()) for norm in self.norms)
        place = "post-normalised" if self.post_normalised else "pre-normalised"
        if behind and not self.post_normalised:
            place = "normalised twice" if before else "normalised inside"
        norm = "LayerNorm" if self.norm_kind[1] else "RMSNorm"
        return f"{place} by {norm}{', gated' if self.gated else ''}"

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries, and of keys."""
        queries = self.output.in_features // self.head
        return queries, (sum(linear.out_features for linear in self.inputs) // self.head - queries) // 2


def parts_of(layer: nn.Module) -> Iterator[LayerParts]:
    """Yields what a layer's parts may be, by their names; the kernels take all sizes. Nothing for other layers.

    Two families may give the same names to parts in other places, so only what the parts compute can tell.
    """
    for names in NAMES.values():
        try:
            parts = _named_parts(layer, names)
            if _fits(parts):
                yield parts
        except Exception as error:  # other names, or foreign code that is made otherwise
            if ran_out(error):
                raise


def _named_parts(layer: Any, names: PartNames) -> LayerParts:
    """The parts by these names. Raises AttributeError and ValueError where they are not there, or are others."""

    def part(name: str) -> Any:
        return attrgetter(name)(layer)

    attention = part(names.attention)
    if getattr(layer, "is_decoder", False):
        raise ValueError("its attention is another one")
    inputs, inner = ([_plain(part(name)) for name in group] for group in (names.inputs, names.inner))
    output, down = _plain(part(names.output)), _plain(part(names.down))
    head = int(getattr(attention, "head_dim", 0) or attention.attention_head_size)
    norms = [
        part(name) if name else None for name in (names.norm, names.output_norm, names.inner_norm, names.down_norm)
    ]
    head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    modules = [*inputs, output, *inner, down, *norms, *head_norms]
    listed = {id(parameter) for module in modules if module is not None for parameter in module.parameters()}
    if {id(parameter) for parameter in layer.parameters()} - listed:
        raise ValueError("it has more parts")
    gated = sum(linear.out_features for linear in inner) == 2 * down.in_features
    return LayerParts(
        norms=tuple(_norm_numbers(norm, output.out_features) for norm in norms),
        head_norms=tuple(_norm_numbers(norm, head) for norm in head_norms),
        inputs=tuple(inputs),
        output=output,
        inner=alternating(inner) if gated else inner[0],
        gated=gated,
        down=down,
        activation=activation_number(part(names.activation)),
        head=head,
        post_normalised=names.post_normalised,
    )


def _plain(linear: Any) -> nn.Linear:
    """The layer itself. Raises ValueError where it is no plain linear layer."""
    if type(linear) is not nn.Linear:
        raise ValueError("it is no plain linear layer")
    return linear


def _fits(parts: LayerParts) -> bool:
    """Whether the kernels take the layer's sizes and normalisations."""
    linears = (*parts.inputs, parts.output, parts.inner, parts.down)
    sizes = all(linear.in_features % DEPTH == 0 and block_of(linear.out_features) for linear in linears)
    queries, keys = parts.heads
    heads = parts.head % HEAD_STEP == 0 and queries > 0 and keys > 0 and queries % keys == 0
    outputs = sum(linear.out_features for linear in parts.inputs)
    kinds = {norm.kind for norm in parts.norms if norm.numbers.numel()}
    head_kinds = {norm.kind for norm in parts.head_norms if norm.numbers.numel()}
    same = len(kinds) == 1 and head_kinds <= {(parts.norm_kind[0], False)}
    return sizes and heads and outputs == (queries + 2 * keys) * parts.head and same


def _norm_numbers(norm: nn.Module | None, width: int) -> NormNumbers:
    """A normalisation's numbers, recognised by what it computes. Raises ValueError for what the kernels have not."""
    if norm is None or isinstance(norm, nn.Identity):
        return NO_NORM
    parameter, epsilon = norm.weight, getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(parameter, Tensor) or parameter.shape != (width,) or not isinstance(epsilon, float):
        raise ValueError("it is no normalisation of rows")
    weight, dtype, centred = parameter.detach().float(), parameter.dtype, isinstance(norm, nn.LayerNorm)
    bias = bias_of(norm, width)
    x = (torch.randn(4, width, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)
    with torch.inference_mode():
        expected = norm(x).float()
    rows = x.float() - x.float().mean(dim=1, keepdim=True) if centred else x.float()
    rows = rows * (rows.square().mean(dim=1, keepdim=True) + epsilon).rsqrt()
    factors = {float((rows * factor + bias - expected).abs().max()): factor for factor in (weight, weight + 1)}
    factor = factors[min(factors)]  # Gemma's weights are added to 1
    if not torch.allclose(rows * factor + bias, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype]):
        raise ValueError("it is another normalisation")
    return NormNumbers(numbers=torch.stack([factor, bias]), epsilon=epsilon, centred=centred)


def alternating(inner: list[nn.Linear]) -> nn.Linear:
    """One layer of two, or of a merged one: the first half of each block of its outputs is the gate's, the second the
    product's.

    Raises ValueError where the outputs are no whole blocks.
    """
    weight = torch.cat([linear.weight.detach() for linear in inner])
    half = block_of(len(weight)) // 2
    if not half:
        raise ValueError("gate and product are no whole blocks")
    merged = nn.Linear(weight.shape[1], len(weight), device="meta")
    bias = torch.cat([bias_of(linear, linear.out_features) for linear in inner])
    merged.weight = nn.Parameter(_interleaved(weight, half), requires_grad=False)
    merged.bias = nn.Parameter(_interleaved(bias, half), requires_grad=False)
    return merged


def _interleaved(rows: Tensor, count: int) -> Tensor:
    """Runs of `count` of the first half of the rows, each followed by the run of the second half at its place."""
    return rows.view(2, -1, count, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)


def activation_number(function: Any) -> int:
    """The number of an activation, recognised by its values. Raises ValueError for one that the kernels have not."""
    x = torch.linspace(-6, 6, 241)
    try:
        kind = gelu_kind(function)
        if kind is not None:
            return ACTIVATIONS[kind]
        for number, candidate in ((RELU, torch.relu), (SILU, nn.functional.silu)):
            if torch.allclose(function(x), candidate(x), atol=1e-6):
                return number
    except Exception as error:  # a class's own function may want and give anything, as I-BERT's gives pairs
        raise ValueError("it is no activation of one tensor") from error
    raise ValueError("the kernels have no such activation")
