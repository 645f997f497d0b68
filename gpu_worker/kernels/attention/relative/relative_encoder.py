"""What encoders with relative position terms share: the state of a forward pass, and layers without masks. And MPNet's
attention, which needs nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionCall, AttentionTerms


@dataclass(slots=True)
class ForwardState:
    """State that the layers share during one forward pass; the model's hook and its encoder set it."""

    call: AttentionCall | None = None
    by_distance: Tensor | None = None


class RelativeEncoder(nn.Module):
    """The layers of an encoder in a row, without the masks and positions of tokens x tokens that it would build.

    `tabulate` makes the table that all layers of a step need, from the longest length; the docstring of
    each attention describes it.
    """

    def __init__(self, layers: nn.ModuleList, state: ForwardState, tabulate: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.layer = layers
        self._state = state
        self._tabulate = tabulate

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Any:
        """Runs the layers: hidden [1, T, H] -> an output with the last hidden states only."""
        from transformers.modeling_outputs import BaseModelOutput

        state = self._state
        assert state.call is not None
        try:
            state.by_distance = self._tabulate(state.call.batch.longest)
            for layer in self.layer:
                hidden = layer(hidden, None)[0]
        finally:
            state.call = state.by_distance = None
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden,))


def attend(state: ForwardState, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: AttentionTerms) -> Tensor:
    """Computes packed attention: query, key and value [1, T, H x D] -> the same shape."""
    call = state.call
    assert call is not None
    q, k, v = (by_head(states[0], heads) for states in (query, key, value))
    return call.attention(q, k, v, call.batch, terms).flatten(1)[None]


def by_head(states: Tensor, heads: int) -> Tensor:
    """Splits states [T, H x D] by head: a view [H, T, D]."""
    return states.view(len(states), heads, -1).transpose(0, 1)


def begin_pass(
    state: ForwardState, _: nn.Module, arguments: Any, keywords: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Stores the attention call for the layers, since these models pass no keyword on to them.

    The mask of ones keeps DeBERTa from looking for padding, which would wait for the device; its four dimensions keep
    MPNet from making a larger mask.
    """
    state.call = keywords.pop("ragged")
    ids = keywords["input_ids"]
    return arguments, keywords | {"attention_mask": torch.ones_like(ids)[:, None, None]}


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


def install_mpnet(encoder: Any, config: Any, state: ForwardState) -> RelativeEncoder:
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
