"""MPNet's attention, whose scores get a bias by head and distance."""

from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.relative.relative_encoder import ForwardState, RelativeEncoder, attend

REACH = 128  # bucket numbers stop growing at this distance: a default of transformers' MPNet that no config changes


class MPNetAttention(nn.Module):
    """MPNet's attention (arXiv:2004.09297): scores get a bias by head and distance, in T5's buckets
    (arXiv:1910.10683), the same in all layers. The step's table is [H, L, L] for the longest L."""

    def __init__(self, attention: Any, state: ForwardState) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = attention.q, attention.k, attention.v, attention.o
        self.heads = int(attention.num_attention_heads)
        self._state = state
        self._scale = float(attention.attention_head_size) ** -0.5

    def forward(self, hidden: Tensor, *_: object, **__: object) -> tuple[Tensor]:
        """Attends and projects: hidden [1, T, hidden size] -> the same shape."""
        table = self._state.by_distance
        assert table is not None
        terms = AttentionTerms(scale=self._scale, bias=lambda query, _: table[:, : query.shape[-2], : query.shape[-2]])
        return (self.o(attend(self._state, self.q(hidden), self.k(hidden), self.v(hidden), self.heads, terms)),)


def install(encoder: Any, config: Any, state: ForwardState) -> RelativeEncoder:
    """Makes the encoder that replaces MPNet's."""
    for layer in encoder.layer:
        layer.attention.attn = MPNetAttention(layer.attention.attn, state)
    positions, table = int(config.max_position_embeddings), encoder.relative_attention_bias.weight
    distances = torch.arange(1 - positions, positions, device=table.device)
    by_distance: Tensor = table.detach()[encoder.relative_position_bucket(distances)].t().contiguous()

    def tabulate(longest: int) -> Tensor:
        middle = by_distance[:, positions - longest : positions + longest - 1]
        return middle.unfold(1, longest, 1).flip(1)  # row i begins at distance -i

    return RelativeEncoder(encoder.layer, state, tabulate)
