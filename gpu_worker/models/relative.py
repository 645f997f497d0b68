"""Attention with relative position terms: MPNet, DeBERTa-v2.

These models know nothing of transformers' attention interface: they would take the name "ragged" and mix sequences.
So their encoder is replaced: tokens of all sequences are projected at once, attention runs by `Terms.bias` inside
each sequence, and nothing is as large as tokens x tokens. What a term adds depends on tokens through their distance
j - i only, so it is kept by distance: 2L - 1 numbers or vectors for length L, those of a shorter text in the middle.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.models.attention import AttentionCall, Terms
from gpu_worker.models.recipe import ModelRefused

MPNET_REACH = 128  # bucket numbers stop growing there; transformers' MPNet has it as a default that no config changes


@dataclass(slots=True)
class Step:
    """What the layers share during one forward pass; set by the model's hook and its encoder."""

    call: AttentionCall | None = None
    by_distance: Tensor | None = None


class Encoder(nn.Module):
    """The layers of an encoder in a row, without the masks and positions of tokens x tokens that it would build.

    `tabulate` makes of the longest length what all layers of a step need: see the two attentions.
    """

    def __init__(self, layers: nn.ModuleList, step: Step, tabulate: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.layer = layers
        self._step = step
        self._tabulate = tabulate

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Any:
        """hidden [1, T, H] -> the same as transformers' encoder gives, with the last hidden states only."""
        from transformers.modeling_outputs import BaseModelOutput

        step = self._step
        assert step.call is not None
        try:
            step.by_distance = self._tabulate(step.call.batch.longest)
            for layer in self.layer:
                hidden = layer(hidden, None)[0]
        finally:
            step.call = step.by_distance = None
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden,))


class MPNetAttention(nn.Module):
    """MPNet's attention (arXiv:2004.09297): scores get a bias by head and distance, in T5's buckets
    (arXiv:1910.10683), the same in all layers. The step's table is [H, L, L] for the longest L."""

    def __init__(self, own: Any, step: Step) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = own.q, own.k, own.v, own.o
        self.heads = int(own.num_attention_heads)
        self._step = step
        self._scale = float(own.attention_head_size) ** -0.5

    def forward(self, hidden: Tensor, *_: object, **__: object) -> tuple[Tensor]:
        """hidden [1, T, hidden size] -> the same, attended and projected."""
        table = self._step.by_distance
        assert table is not None
        terms = Terms(scale=self._scale, bias=lambda query, _: table[:, : query.shape[-2], : query.shape[-2]])
        return (self.o(_attend(self._step, self.q(hidden), self.k(hidden), self.v(hidden), self.heads, terms)),)


class DebertaAttention(nn.Module):
    """DeBERTa's disentangled attention (arXiv:2006.03654), in its second version (arXiv:2111.09543).

    To the score of token i for j come i's query times the key of their distance (content to position, c2p) and j's
    key times the query of their distance (p2c). Projections of the embedded distances are constants of a layer,
    `c2p` and `p2c` [H, B, D] for B buckets, made here once and scaled. The step's table is [2L - 1]: the bucket of
    every distance j - i of the longest L.
    """

    c2p: Tensor | None
    p2c: Tensor | None

    def __init__(self, own: Any, embedded_distances: Tensor | None, step: Step) -> None:
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj = own.query_proj, own.key_proj, own.value_proj
        self.heads = int(own.num_attention_heads)
        self._step = step
        kinds = [kind for kind in ("c2p", "p2c") if kind in own.pos_att_type]
        self._scale = 1 / math.sqrt(own.attention_head_size * (1 + len(kinds)))
        for kind, projection in (("c2p", "key_proj"), ("p2c", "query_proj")):
            positions = None
            if embedded_distances is not None and kind in kinds:
                project = getattr(own, projection if own.share_att_key else f"pos_{projection}")
                positions = _by_head(project(embedded_distances), self.heads) * self._scale
            self.register_buffer(kind, positions, persistent=False)

    def forward(self, hidden: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        """hidden [1, T, hidden size] -> the same, attended."""
        projected = self.query_proj(hidden), self.key_proj(hidden), self.value_proj(hidden)
        terms = Terms(scale=self._scale, bias=self._bias())
        return _attend(self._step, *projected, self.heads, terms), None

    def _bias(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        buckets = self._step.by_distance
        assert buckets is not None
        if self.c2p is None and self.p2c is None:
            return None
        keys = None if self.c2p is None else self.c2p[:, buckets]
        queries = None if self.p2c is None else self.p2c[:, buckets.flip(0)]  # rows are j: by distance i - j
        return partial(disentangled, keys, queries)


def disentangled(keys: Tensor | None, queries: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """c2p + p2c [..., H, L, L] of query and key [..., H, L, D].

    `keys` [H, 2M - 1, D] are by distance j - i, `queries` by i - j, for any M >= L.
    """
    bias = None if keys is None else _by_pair(query, keys)
    if queries is not None:
        content = _by_pair(key, queries).transpose(-1, -2)
        bias = content if bias is None else bias + content
    assert bias is not None
    return bias


def _by_pair(states: Tensor, by_distance: Tensor) -> Tensor:
    """[..., H, L, L]: row times the vector of its distance to each column. states [..., H, L, D].

    All products of rows and distances, then a view in which each row begins one further to the left: entry (a, b)
    is column L - 1 + b - a. Gathering the same numbers takes as long in float32 and longer in bfloat16.
    """
    length, furthest = states.shape[-2], by_distance.shape[1] // 2
    assert length <= furthest + 1
    middle = by_distance[:, furthest - length + 1 : furthest + length]
    by_head = states.movedim(-3, 0)
    products = torch.bmm(by_head.flatten(1, -2), middle.transpose(1, 2)).view(*by_head.shape[:-1], -1)
    products = products.movedim(0, -3)[..., length - 1 :]
    size, stride = (*products.shape[:-1], length), (*products.stride()[:-2], products.stride(-2) - 1, 1)
    return products.as_strided(size, stride)


def _attend(step: Step, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: Terms) -> Tensor:
    """Packed attention of [1, T, H x D] each -> the same shape."""
    call = step.call
    assert call is not None
    call.count += 1
    q, k, v = (_by_head(each[0], heads) for each in (query, key, value))
    return call.attention(q, k, v, call.batch, terms).flatten(1)[None]


def _by_head(states: Tensor, heads: int) -> Tensor:
    """[T, H x D] -> [H, T, D], a view."""
    return states.view(len(states), heads, -1).transpose(0, 1)


def serves(config: Any) -> bool:
    """Whether this model type has its packed attention here."""
    return config.model_type in ENCODERS


def reach(config: Any) -> int:
    """How far apart tokens may be and still be told from tokens a little further apart, about; 0 without such terms."""
    if config.model_type == "mpnet":
        return MPNET_REACH
    if config.model_type == "deberta-v2" and config.relative_attention:
        return max(int(getattr(config, "position_buckets", -1)), int(config.max_relative_positions), 0)
    return 0


def install(model: Any) -> None:
    """Makes a loaded model run packed, in place, from its keyword `ragged` on. Raises ModelRefused."""
    step = Step()
    with torch.no_grad():
        model.encoder = ENCODERS[model.config.model_type](model.encoder, model.config, step)
    model.register_forward_pre_hook(partial(_enter, step), with_kwargs=True)


def _enter(step: Step, _: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keeps the call for the layers, since these models pass no keyword on to them.

    The mask of ones keeps DeBERTa from looking for padding, which would wait for the device; of four dimensions,
    it keeps MPNet from making a larger one.
    """
    step.call = keywords.pop("ragged")
    ids = keywords["input_ids"]
    return arguments, keywords | {"attention_mask": torch.ones_like(ids)[:, None, None]}


def _mpnet(own: Any, config: Any, step: Step) -> Encoder:
    for layer in own.layer:
        layer.attention.attn = MPNetAttention(layer.attention.attn, step)
    positions, table = int(config.max_position_embeddings), own.relative_attention_bias.weight
    distances = torch.arange(1 - positions, positions, device=table.device)
    by_distance: Tensor = table.detach()[own.relative_position_bucket(distances)].t().contiguous()

    def tabulate(longest: int) -> Tensor:
        middle = by_distance[:, positions - longest : positions + longest - 1]
        return middle.unfold(1, longest, 1).flip(1)  # row i begins at the distance -i

    return Encoder(own.layer, step, tabulate)


def _deberta(own: Any, config: Any, step: Step) -> Encoder:
    if own.conv is not None:
        raise ModelRefused(
            f"conv_kernel_size = {config.conv_kernel_size}: DeBERTa-v2 with a convolution over tokens cannot run packed"
        )
    embedded = own.get_rel_embedding()
    positions = int(config.max_position_embeddings)
    span = 0 if embedded is None else len(embedded) // 2
    buckets = torch.zeros(2 * positions - 1, dtype=torch.int64)
    if embedded is not None:
        buckets = bucket(torch.arange(positions - 1, -positions, -1), own.position_buckets, own.max_relative_positions)
        buckets = torch.clamp(buckets + span, 0, 2 * span - 1).to(embedded.device)
    for layer in own.layer:
        layer.attention.self = DebertaAttention(layer.attention.self, embedded, step)
    return Encoder(own.layer, step, lambda longest: buckets[positions - longest : positions + longest - 1])


def bucket(distance: Tensor, buckets: int, furthest: int) -> Tensor:
    """DeBERTa-v2's numbers of distances i - j: exact to half of `buckets`, then logarithmic to `furthest`.

    In float32 as in transformers, where the rounding decides the bucket. `buckets` <= 0: each distance its own.
    """
    if buckets <= 0 or furthest <= 0:
        return distance
    half = buckets // 2
    far = distance.abs().clamp(min=half)
    steps: Tensor = torch.log(far / half) / torch.log(torch.tensor((furthest - 1) / half)) * (half - 1)
    return torch.where(far <= half, distance, (torch.ceil(steps).long() + half) * distance.sign())


ENCODERS: dict[str, Callable[[Any, Any, Step], Encoder]] = {"mpnet": _mpnet, "deberta-v2": _deberta}
