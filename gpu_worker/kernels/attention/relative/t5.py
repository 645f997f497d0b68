"""The encoders of T5 (arXiv:1910.10683), MT5 (arXiv:2010.11934) and UMT5 (arXiv:2304.09151).

Scores get a bias by head and bucket of distances, and are not scaled: the scale is folded into the weights. T5 and MT5
have one table of biases for all layers, UMT5 has one a layer. Distances are unbounded, so the length of texts is too.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.relative.relative_encoder import ForwardState, attend


class T5Encoder(nn.Module):
    """A T5Stack's embeddings, layers and last norm, without its masks and biases of tokens x tokens."""

    def __init__(self, stack: Any, layers: "list[T5Layer]", state: ForwardState) -> None:
        super().__init__()
        self.embed_tokens, self.final_layer_norm = stack.embed_tokens, stack.final_layer_norm
        self.layer = nn.ModuleList(layers)
        first = stack.block[0].layer[0].SelfAttention
        self._buckets, self._furthest = first.relative_attention_num_buckets, first.relative_attention_max_distance
        numbers = bucket(torch.arange(-self._furthest, self._furthest + 1), self._buckets, self._furthest)
        self.register_buffer("numbers", numbers.to(stack.embed_tokens.weight.device), persistent=False)
        self.numbers: Tensor
        self._state = state

    def forward(self, input_ids: Tensor, **_: object) -> BaseModelOutput:
        """Runs the encoder: input_ids [1, T] -> last hidden states [1, T, H]."""
        state = self._state
        assert state.call is not None
        try:
            state.by_distance = self._tabulate(state.call.batch.longest)
            hidden = self.embed_tokens(input_ids)
            for layer in self.layer:
                hidden = layer(hidden)
        finally:
            state.call = state.by_distance = None
        return BaseModelOutput(last_hidden_state=self.final_layer_norm(hidden))

    def _tabulate(self, longest: int) -> Tensor:
        """Buckets [2L - 1] of every distance j - i; distances beyond the furthest are in its bucket."""
        furthest = self._furthest
        distances = torch.arange(1 - longest, longest, device=self.numbers.device).clamp(-furthest, furthest)
        return self.numbers[distances + furthest]


class T5Layer(nn.Module):
    """Attention and feed-forward, each applied to normalised input and added to that input."""

    def __init__(self, block: Any, table: Tensor, state: ForwardState) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = block.layer[0].layer_norm, block.layer[-1].layer_norm
        self.attention = T5Attention(block.layer[0].SelfAttention, table, state)
        self.feed_forward = FeedForward(block.layer[-1].DenseReluDense)

    def forward(self, hidden: Tensor) -> Tensor:
        """Runs the layer: [1, T, H] -> the same shape."""
        hidden = _finite(hidden + self.attention(self.attention_norm(hidden)))
        return _finite(hidden + self.feed_forward(self.feed_forward_norm(hidden)))


class T5Attention(nn.Module):
    """Self-attention with a bias by head and bucket."""

    def __init__(self, attention: Any, table: Tensor, state: ForwardState) -> None:
        """Copies T5's projections; `table` [buckets, H] holds the biases."""
        super().__init__()
        self.q, self.k, self.v, self.o = attention.q, attention.k, attention.v, attention.o
        self.heads = int(attention.n_heads)
        self.register_buffer("table", table.detach().t().contiguous(), persistent=False)
        self.table: Tensor
        self._state = state

    def forward(self, hidden: Tensor) -> Tensor:
        """Attends and projects: [1, T, hidden size] -> the same shape."""
        buckets = self._state.by_distance
        assert buckets is not None
        by_distance = self.table[:, buckets]
        terms = AttentionTerms(scale=1.0, bias=lambda query, _: spread(by_distance, query.shape[-2]))
        output: Tensor = self.o(attend(self._state, self.q(hidden), self.k(hidden), self.v(hidden), self.heads, terms))
        return output


class FeedForward(nn.Module):
    """T5's feed-forward: wo(act(wi(x))), or gated: wo(act(wi_0(x)) x wi_1(x)). `wo` may stay float32."""

    def __init__(self, dense: Any) -> None:
        super().__init__()
        gated = hasattr(dense, "wi_0")
        self.wi: nn.Module = dense.wi_0 if gated else dense.wi
        self.gate: nn.Module | None = dense.wi_1 if gated else None
        self.wo, self.act = dense.wo, dense.act
        self._dtype = dense.wo.weight.dtype

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.act(self.wi(hidden))
        if self.gate is not None:
            inner = inner * self.gate(hidden)
        output: Tensor = self.wo(inner.to(self._dtype))
        return output


def spread(by_distance: Tensor, length: int) -> Tensor:
    """Spreads biases by distance j - i [H, 2M - 1] over pairs of tokens: [H, L, L], for L <= M."""
    middle = by_distance.shape[1] // 2
    return by_distance[:, middle - length + 1 : middle + length].unfold(1, length, 1).flip(1)  # row i begins at -i


def bucket(distance: Tensor, buckets: int, furthest: int) -> Tensor:
    """Buckets of distances j - i in T5: half for each direction; half of these exact, the others logarithmic.

    Computed in float32 as in transformers, since the rounding decides the bucket.
    """
    half = buckets // 2
    exact = half // 2
    size = distance.abs()
    steps = torch.log(size.clamp(min=1).float() / exact) / math.log(furthest / exact) * (half - exact)
    far = (exact + steps.long()).clamp(max=half - 1)
    return (distance > 0).long() * half + torch.where(size < exact, size, far)


def _finite(hidden: Tensor) -> Tensor:
    """Clamps infinities, as transformers does: float16 overflows in T5's larger checkpoints."""
    if hidden.dtype != torch.float16:
        return hidden
    largest = torch.finfo(hidden.dtype).max - 1000
    return torch.where(torch.isinf(hidden), hidden.sign() * largest, hidden)


def install(stack: Any, _: Any, state: ForwardState) -> T5Encoder:
    """Makes the encoder that replaces a T5Stack."""
    first = stack.block[0].layer[0].SelfAttention.relative_attention_bias
    layers = []
    for block in stack.block:
        table = getattr(block.layer[0].SelfAttention, "relative_attention_bias", first)
        layers.append(T5Layer(block, table.weight, state))
    return T5Encoder(stack, layers, state)
