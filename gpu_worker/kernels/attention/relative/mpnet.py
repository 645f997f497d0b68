"""MPNet: scores get a bias by head and distance."""

from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.attention.relative.encoder import Current, RelativeEncoder, attend

REACH = 128  # bucket numbers stop growing there; transformers' MPNet has it as a default that no config changes


class MPNetAttention(nn.Module):
    """MPNet's attention (arXiv:2004.09297): scores get a bias by head and distance, in T5's buckets
    (arXiv:1910.10683), the same in all layers. The step's table is [H, L, L] for the longest L."""

    def __init__(self, own: Any, step: Current) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = own.q, own.k, own.v, own.o
        self.heads = int(own.num_attention_heads)
        self._step = step
        self._scale = float(own.attention_head_size) ** -0.5

    def forward(self, hidden: Tensor, *_: object, **__: object) -> tuple[Tensor]:
        """hidden [1, T, hidden size] -> the same, attended and projected."""
        table = self._step.by_distance
        assert table is not None
        terms = AttentionTerms(scale=self._scale, bias=lambda query, _: table[:, : query.shape[-2], : query.shape[-2]])
        return (self.o(attend(self._step, self.q(hidden), self.k(hidden), self.v(hidden), self.heads, terms)),)


def install(own: Any, config: Any, step: Current) -> RelativeEncoder:
    for layer in own.layer:
        layer.attention.attn = MPNetAttention(layer.attention.attn, step)
    positions, table = int(config.max_position_embeddings), own.relative_attention_bias.weight
    distances = torch.arange(1 - positions, positions, device=table.device)
    by_distance: Tensor = table.detach()[own.relative_position_bucket(distances)].t().contiguous()

    def tabulate(longest: int) -> Tensor:
        middle = by_distance[:, positions - longest : positions + longest - 1]
        return middle.unfold(1, longest, 1).flip(1)  # row i begins at the distance -i

    return RelativeEncoder(own.layer, step, tabulate)
