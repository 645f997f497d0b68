"""Layers as the processor's kernels take them: the weights of a transformers layer in the kernels' layout.

A layer normalises, attends and feeds forward, with residuals around both; `families` says where its parts are.
"""

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from gpu_worker.kernels.attention.interface import terms_of
from gpu_worker.kernels.attention.native_attention import HEAD_STEP
from gpu_worker.kernels.cpu.products import DEPTH
from gpu_worker.model.native.families import Family, LayerNames
from gpu_worker.model.native.packed_linear import BlockedLinear, LinearClass, bias_of, block_of
from shared.errors import ModelRefused

_NUMBERS = {"gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2, "relu": 3, "silu": 4}
ACTIVATIONS = {type(ACT2FN[name]): number for name, number in _NUMBERS.items()}
"""Numbers of the kernels' activations (`source/linear.h`) by transformers' classes."""
HEAD_NORMS = "q_norm", "k_norm"
"""Names, in a layer's attention, of what normalises heads of queries and of keys."""
LayerKind = tuple[list[int], float, bool, int, bool, bool]
"""The width of heads and how many there are of queries and of keys; epsilon of the normalisations and whether they are
centred; the activation's number; whether the feed-forward is gated; whether the layer is post-normalised."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation as the kernels take it: `numbers` [2, width] float32, weight and bias; empty for none."""

    numbers: Tensor
    epsilon: float = 0.0
    centred: bool = False


NO_NORM = Norm(torch.empty(0))


class Layer(nn.Module):
    """The weights of a layer. `kind` is what neighbours must have in common to run in one call; so are its `terms`,
    those of its attention, and `angles`, the key of its rotary positions, None for a layer without."""

    def __init__(
        self, layer: nn.Module, family: Family, *, angles: str | None, capped: bool, linear: LinearClass
    ) -> None:
        """Copies a transformers layer's weights into the layout of the class `linear`. `capped`: scores have the
        softcap that the layer names. Raises ModelRefused for a layer that the kernels have not."""
        super().__init__()
        names, attention = family.names, _part(layer, family.names.attention)
        inputs, inner = ([_linear(layer, name) for name in group] for group in (names.inputs, names.inner))
        output, down = _linear(layer, names.output), _linear(layer, names.down)
        norms = [_norm(_part(layer, name) if name else None, family) for name in names.norms]
        head_norms = [_norm(getattr(attention, name, None), family) for name in HEAD_NORMS]
        _check_parts(layer, names)
        head = int(getattr(attention, "head_dim", 0) or attention.attention_head_size)
        queries = output.in_features // head
        keys = (sum(part.out_features for part in inputs) // head - queries) // 2
        _check_sizes([*inputs, output, *inner, down], head, queries, keys)
        gated = sum(part.out_features for part in inner) == 2 * down.in_features
        epsilon, centred = _common_kind(norms, head_norms)
        activation = _activation(_part(layer, names.activation))
        self.kind: LayerKind = [head, queries, keys], epsilon, centred, activation, gated, names.post_normalised
        softcap = attention.attn_logit_softcapping if capped and family.softcap else None
        scaling, window = getattr(attention, "scaling", None), family.window(attention)
        self.terms = terms_of(attention, scaling, head, None, window, softcap)
        self.angles = angles if family.rotated(attention) else None
        self._inputs, self._output, self._down = linear(*inputs), linear(output), linear(down)
        self._inner: BlockedLinear = linear(alternating(inner) if gated else inner[0])
        self._first_norm, *self._norms = (norm.numbers for norm in norms)
        self._head_norms = [norm.numbers for norm in head_norms]

    @property
    def form(self) -> str:
        """Where the layer normalises, how, and whether its feed-forward is gated; for log and pages."""
        _, _, centred, _, gated, post_normalised = self.kind
        place = "post-normalised" if post_normalised else "pre-normalised"
        if self._norms[0].numel() and not post_normalised:
            place = "normalised twice" if self._first_norm.numel() else "normalised inside"
        return f"{place} by {'LayerNorm' if centred else 'RMSNorm'}{', gated' if gated else ''}"

    @property
    def numbers(self) -> list[Tensor]:
        """Weights, biases and norms as `torch.ops.selvage.layers` takes them."""
        products = self._output, self._inner, self._down
        return [
            *(self._inputs.weight, self._inputs.bias, self._first_norm, *self._head_norms),
            *(product.weight for product in products),
            *(product.bias for product in products),
            *self._norms,
        ]


def _part(owner: Any, name: str) -> Any:
    """Finds a part of a layer. Raises ModelRefused where it is not there."""
    try:
        return attrgetter(name)(owner)
    except AttributeError as missing:
        raise ModelRefused(f"{type(owner).__name__} has no {name}") from missing


def _linear(layer: nn.Module, name: str) -> nn.Linear:
    """Reads a linear layer. Raises ModelRefused for another one, as adapters make it."""
    part = _part(layer, name)
    if type(part) is not nn.Linear:
        raise ModelRefused(f"{name} is a {type(part).__name__}")
    return part


def _norm(norm: Any, family: Family) -> Norm:
    """Reads a normalisation's numbers; none where a layer has none there."""
    if norm is None or isinstance(norm, nn.Identity):
        return NO_NORM
    weight, centred = norm.weight.detach().float(), isinstance(norm, nn.LayerNorm)
    epsilon = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
    factor = weight + 1 if family.added_to_one and not centred else weight
    return Norm(torch.stack([factor, bias_of(norm, len(weight))]), epsilon, centred)


def _activation(function: Any) -> int:
    """Reads the number of an activation. Raises ModelRefused for one that the kernels have not."""
    if type(function) not in ACTIVATIONS:
        raise ModelRefused(f"they have no activation {type(function).__name__}")
    return ACTIVATIONS[type(function)]


def _check_parts(layer: nn.Module, names: LayerNames) -> None:
    """Raises ModelRefused for a layer that has weights of other parts too, as attention to another text's states."""
    heads = (f"{names.attention}.{name}" for name in HEAD_NORMS)
    listed = {*names.inputs, names.output, *names.inner, names.down, *names.norms, *heads}
    unlisted = [name for name, _ in layer.named_parameters() if name.rpartition(".")[0] not in listed]
    if unlisted:
        raise ModelRefused(f"{type(layer).__name__} has more parts: {unlisted[0]}")


def _check_sizes(linears: list[nn.Linear], head: int, queries: int, keys: int) -> None:
    """Raises ModelRefused for sizes that the kernels do not take."""
    for linear in linears:
        if linear.in_features % DEPTH or not block_of(linear.out_features):
            raise ModelRefused(
                f"a linear layer of {linear.in_features} x {linear.out_features} is no multiple of {DEPTH}"
            )
    if head % HEAD_STEP or keys < 1 or queries % keys:
        raise ModelRefused(f"{queries} heads of {head} numbers with {keys} of keys")


def _common_kind(norms: list[Norm], head_norms: list[Norm]) -> tuple[float, bool]:
    """Epsilon of all normalisations, and whether those of whole rows are centred. Raises ModelRefused where they
    differ."""
    kinds = {(norm.epsilon, norm.centred) for norm in norms if norm.numbers.numel()}
    of_heads = {(norm.epsilon, norm.centred) for norm in head_norms if norm.numbers.numel()}
    if len(kinds) != 1 or not of_heads <= {(epsilon, False) for epsilon, _ in kinds}:
        raise ModelRefused("its normalisations are of several kinds")
    return kinds.pop()


def alternating(inner: list[nn.Linear]) -> nn.Linear:
    """Makes one layer of two, or of a merged one: the first half of each block of its outputs is the gate's, the
    second the product's."""
    weight = torch.cat([linear.weight.detach() for linear in inner])
    half = block_of(len(weight)) // 2
    merged = nn.Linear(weight.shape[1], len(weight), device="meta")
    bias = torch.cat([bias_of(linear, linear.out_features) for linear in inner])
    merged.weight = nn.Parameter(_interleaved(weight, half), requires_grad=False)
    merged.bias = nn.Parameter(_interleaved(bias, half), requires_grad=False)
    return merged


def _interleaved(rows: Tensor, count: int) -> Tensor:
    """Runs of `count` of the first half of the rows, each followed by the run of the second half at its place."""
    return rows.view(2, -1, count, *rows.shape[1:]).transpose(0, 1).flatten(0, 2)
