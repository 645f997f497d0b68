"""What encoders with relative position terms share: a step's call, and layers without masks of tokens x tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.kernels.attention.interface import AttentionCall, AttentionTerms


@dataclass(slots=True)
class Current:
    """What the layers share during one forward pass; set by the model's hook and its encoder."""

    call: AttentionCall | None = None
    by_distance: Tensor | None = None


class RelativeEncoder(nn.Module):
    """The layers of an encoder in a row, without the masks and positions of tokens x tokens that it would build.

    `tabulate` makes of the longest length what all layers of a step need: see the two attentions.
    """

    def __init__(self, layers: nn.ModuleList, step: Current, tabulate: Callable[[int], Tensor]) -> None:
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


def attend(step: Current, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: AttentionTerms) -> Tensor:
    """Packed attention of [1, T, H x D] each -> the same shape."""
    call = step.call
    assert call is not None
    q, k, v = (by_head(each[0], heads) for each in (query, key, value))
    return call.attention(q, k, v, call.batch, terms).flatten(1)[None]


def by_head(states: Tensor, heads: int) -> Tensor:
    """[T, H x D] -> [H, T, D], a view."""
    return states.view(len(states), heads, -1).transpose(0, 1)


def enter(step: Current, _: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Keeps the call for the layers, since these models pass no keyword on to them.

    The mask of ones keeps DeBERTa from looking for padding, which would wait for the device; of four dimensions,
    it keeps MPNet from making a larger one.
    """
    step.call = keywords.pop("ragged")
    ids = keywords["input_ids"]
    return arguments, keywords | {"attention_mask": torch.ones_like(ids)[:, None, None]}
