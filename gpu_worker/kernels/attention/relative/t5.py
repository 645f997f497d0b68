"""The encoders of T5 (arXiv:1910.10683), MT5 (arXiv:2010.11934) and UMT5 (arXiv:2304.09151).

Scores get a bias by head and bucket of distances, and are not scaled: that is folded into the weights. T5 and MT5 have
one table of biases for all layers, UMT5 one a layer. Distances have no end, so texts have none either.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.relative.encoder import Current, attend


class T5Encoder(nn.Module):
    """Embeddings, layers and the last norm, without the masks and biases of tokens x tokens that it would build."""

    def __init__(self, own: Any, layers: "list[T5Layer]", step: Current) -> None:
        super().__init__()
        self.embed_tokens, self.final_layer_norm = own.embed_tokens, own.final_layer_norm
        self.layer = nn.ModuleList(layers)
        first = own.block[0].layer[0].SelfAttention
        self._buckets, self._furthest = first.relative_attention_num_buckets, first.relative_attention_max_distance
        numbers = bucket(torch.arange(-self._furthest, self._furthest + 1), self._buckets, self._furthest)
        self.register_buffer("numbers", numbers.to(own.embed_tokens.weight.device), persistent=False)
        self.numbers: Tensor
        self._step = step

    def forward(self, input_ids: Tensor, **_: object) -> BaseModelOutput:
        """input_ids [1, T] -> last hidden states [1, T, H]."""
        step = self._step
        assert step.call is not None
        try:
            step.by_distance = self._tabulate(step.call.batch.longest)
            hidden = self.embed_tokens(input_ids)
            for layer in self.layer:
                hidden = layer(hidden)
        finally:
            step.call = step.by_distance = None
        return BaseModelOutput(last_hidden_state=self.final_layer_norm(hidden))

    def _tabulate(self, longest: int) -> Tensor:
        """[2L - 1] the bucket of every distance j - i; beyond the furthest all are alike."""
        furthest = self._furthest
        distances = torch.arange(1 - longest, longest, device=self.numbers.device).clamp(-furthest, furthest)
        return self.numbers[distances + furthest]


class T5Layer(nn.Module):
    """Attention and feed-forward, each behind its norm and beside its input."""

    def __init__(self, own: Any, table: Tensor, step: Current) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = own.layer[0].layer_norm, own.layer[-1].layer_norm
        self.attention = T5Attention(own.layer[0].SelfAttention, table, step)
        self.feed_forward = FeedForward(own.layer[-1].DenseReluDense)

    def forward(self, hidden: Tensor) -> Tensor:
        """[1, T, H] -> the same shape."""
        hidden = _finite(hidden + self.attention(self.attention_norm(hidden)))
        return _finite(hidden + self.feed_forward(self.feed_forward_norm(hidden)))


class T5Attention(nn.Module):
    """Self-attention with a bias by head and bucket."""

    def __init__(self, own: Any, table: Tensor, step: Current) -> None:
        """`table` [buckets, H]."""
        super().__init__()
        self.q, self.k, self.v, self.o = own.q, own.k, own.v, own.o
        self.heads = int(own.n_heads)
        self.register_buffer("table", table.detach().t().contiguous(), persistent=False)
        self.table: Tensor
        self._step = step

    def forward(self, hidden: Tensor) -> Tensor:
        """[1, T, hidden size] -> the same, attended and projected."""
        buckets = self._step.by_distance
        assert buckets is not None
        by_distance = self.table[:, buckets]
        terms = AttentionTerms(scale=1.0, bias=lambda query, _: spread(by_distance, query.shape[-2]))
        output: Tensor = self.o(attend(self._step, self.q(hidden), self.k(hidden), self.v(hidden), self.heads, terms))
        return output


class FeedForward(nn.Module):
    """wo(act(wi(x))), or gated: wo(act(wi_0(x)) x wi_1(x)). In half precision `wo` may be kept in float32."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        gated = hasattr(own, "wi_0")
        self.wi: nn.Module = own.wi_0 if gated else own.wi
        self.gate: nn.Module | None = own.wi_1 if gated else None
        self.wo, self.act = own.wo, own.act
        self._dtype = own.wo.weight.dtype

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.act(self.wi(hidden))
        if self.gate is not None:
            inner = inner * self.gate(hidden)
        output: Tensor = self.wo(inner.to(self._dtype))
        return output


def spread(by_distance: Tensor, length: int) -> Tensor:
    """by_distance [H, 2M - 1], of distances j - i -> [H, L, L] of pairs, for L <= M."""
    middle = by_distance.shape[1] // 2
    return by_distance[:, middle - length + 1 : middle + length].unfold(1, length, 1).flip(1)  # row i begins at -i


def bucket(distance: Tensor, buckets: int, furthest: int) -> Tensor:
    """T5's numbers of distances j - i: half of them for each direction, of these half exact, then logarithmic.

    In float32 as in transformers, where the rounding decides the bucket.
    """
    half = buckets // 2
    exact = half // 2
    size = distance.abs()
    steps = torch.log(size.clamp(min=1).float() / exact) / math.log(furthest / exact) * (half - exact)
    far = (exact + steps.long()).clamp(max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)


def _finite(hidden: Tensor) -> Tensor:
    """float16 overflows in T5's larger checkpoints; transformers clamps it."""
    if hidden.dtype != torch.float16:
        return hidden
    most = torch.finfo(hidden.dtype).max - 1000
    return torch.where(torch.isinf(hidden), hidden.sign() * most, hidden)


def install(own: Any, _: Any, step: Current) -> T5Encoder:
    """The encoder that takes the place of a T5Stack."""
    first = own.block[0].layer[0].SelfAttention.relative_attention_bias
    layers = []
    for block in own.block:
        table = getattr(block.layer[0].SelfAttention, "relative_attention_bias", first)
        layers.append(T5Layer(block, table.weight, step))
    return T5Encoder(own, layers, step)
