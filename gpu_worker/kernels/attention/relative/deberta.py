"""DeBERTa-v2's disentangled attention, computed by distance."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.relative.relative_encoder import ForwardState, RelativeEncoder, attend, by_head
from shared.errors import ModelRefused


class DebertaAttention(nn.Module):
    """DeBERTa's disentangled attention (arXiv:2006.03654), in its second version (arXiv:2111.09543).

    Two terms are added to the score of token i for token j: i's query times the key of their distance (content to
    position, c2p), and j's key times the query of their distance (p2c). Projections of the embedded distances are
    constants of a layer, `c2p` and `p2c` [H, B, D] for B buckets, made once and scaled. The table of a step is
    [2L - 1]: the bucket of every distance j - i for the longest length L.
    """

    c2p: Tensor | None
    p2c: Tensor | None

    def __init__(self, attention: Any, embedded_distances: Tensor | None, state: ForwardState) -> None:
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj = attention.query_proj, attention.key_proj, attention.value_proj
        self.heads = int(attention.num_attention_heads)
        self._state = state
        kinds = [kind for kind in ("c2p", "p2c") if kind in attention.pos_att_type]
        self._scale = 1 / math.sqrt(attention.attention_head_size * (1 + len(kinds)))
        for kind, projection in (("c2p", "key_proj"), ("p2c", "query_proj")):
            positions = None
            if embedded_distances is not None and kind in kinds:
                project = getattr(attention, projection if attention.share_att_key else f"pos_{projection}")
                positions = by_head(project(embedded_distances), self.heads) * self._scale
            self.register_buffer(kind, positions, persistent=False)

    def forward(self, hidden: Tensor, *_: object, **__: object) -> tuple[Tensor, None]:
        """Attends: hidden [1, T, hidden size] -> the same shape."""
        projected = self.query_proj(hidden), self.key_proj(hidden), self.value_proj(hidden)
        terms = AttentionTerms(scale=self._scale, bias=self._bias())
        return attend(self._state, *projected, self.heads, terms), None

    def _bias(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        buckets = self._state.by_distance
        assert buckets is not None
        if self.c2p is None and self.p2c is None:
            return None
        keys = None if self.c2p is None else self.c2p[:, buckets]
        queries = None if self.p2c is None else self.p2c[:, buckets.flip(0)]  # rows are j: by distance i - j
        return partial(disentangled, keys, queries)


def disentangled(keys: Tensor | None, queries: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Sums both terms: c2p + p2c [..., H, L, L], from query and key [..., H, L, D].

    `keys` [H, 2M - 1, D] are stored by distance j - i, `queries` by i - j, for any M >= L.
    """
    bias = None if keys is None else _by_pair(query, keys)
    if queries is not None:
        content = _by_pair(key, queries).transpose(-1, -2)
        bias = content if bias is None else bias + content
    assert bias is not None
    return bias


def _by_pair(states: Tensor, by_distance: Tensor) -> Tensor:
    """Multiplies each row of states [..., H, L, D] by the vector of its distance to each column: [..., H, L, L].

    It computes all products of rows and distances, then views them so that each row begins one column further to the
    left: entry (a, b) is column L - 1 + b - a. Gathering the same numbers takes as long in float32 and longer in
    bfloat16.
    """
    length, furthest = states.shape[-2], by_distance.shape[1] // 2
    assert length <= furthest + 1
    middle = by_distance[:, furthest - length + 1 : furthest + length]
    by_head = states.movedim(-3, 0)
    products = torch.bmm(by_head.flatten(1, -2), middle.transpose(1, 2)).view(*by_head.shape[:-1], -1)
    products = products.movedim(0, -3)[..., length - 1 :]
    size, stride = (*products.shape[:-1], length), (*products.stride()[:-2], products.stride(-2) - 1, 1)
    return products.as_strided(size, stride)


def install(encoder: Any, config: Any, state: ForwardState) -> RelativeEncoder:
    """Makes the encoder that replaces DeBERTa-v2's. Raises ModelRefused for one with a convolution."""
    if encoder.conv is not None:
        raise ModelRefused(
            f"conv_kernel_size = {config.conv_kernel_size}: DeBERTa-v2 with a convolution over tokens cannot run packed"
        )
    embedded = encoder.get_rel_embedding()
    positions = int(config.max_position_embeddings)
    reach = 0 if embedded is None else len(embedded) // 2
    buckets = torch.zeros(2 * positions - 1, dtype=torch.int64)
    if embedded is not None:
        buckets = bucket(
            torch.arange(positions - 1, -positions, -1), encoder.position_buckets, encoder.max_relative_positions
        )
        buckets = torch.clamp(buckets + reach, 0, 2 * reach - 1).to(embedded.device)
    for layer in encoder.layer:
        layer.attention.self = DebertaAttention(layer.attention.self, embedded, state)
    return RelativeEncoder(encoder.layer, state, lambda longest: buckets[positions - longest : positions + longest - 1])


def bucket(distance: Tensor, buckets: int, furthest: int) -> Tensor:
    """Buckets of distances i - j in DeBERTa-v2: exact up to half of `buckets`, then logarithmic up to `furthest`.

    Computed in float32 as in transformers, since the rounding decides the bucket. With `buckets` <= 0 every distance is
    a bucket.
    """
    if buckets <= 0 or furthest <= 0:
        return distance
    half = buckets // 2
    far = distance.abs().clamp(min=half)
    steps: Tensor = torch.log(far / half) / torch.log(torch.tensor((furthest - 1) / half)) * (half - 1)
    return torch.where(far <= half, distance, (torch.ceil(steps).long() + half) * distance.sign())
