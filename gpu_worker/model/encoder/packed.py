"""The packed execution mode: an unmodified encoder runs all sequences of a batch at once, end to end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.attention import states
from gpu_worker.kernels.attention.interface import (
    AttentionCall,
    AttentionTerms,
    LayerAttention,
    PackedAttention,
    PieceAttention,
    is_causal,
)
from gpu_worker.model.adapters.lora import step_adapters_of
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.texts import TokenTypes


class PackedEncoder(Encoder):
    """An encoder in which every layer attends through `attention`."""

    def __init__(
        self,
        model: Any,
        attention: PackedAttention,
        uncounted: int | None = None,
        token_types: TokenTypes | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(model, uncounted=uncounted, token_types=token_types, width=width)
        self.attention = attention
        self.keeps_states = bool(states.layers(model))
        self._step_adapters = step_adapters_of(model)

    @property
    def description(self) -> str:  # type: ignore[override]
        return self.attention.name

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return is_causal(self.model) or self.keeps_states

    @property
    def attending_layers(self) -> int | None:
        """How many layers attend, once each; None where the config does not say."""
        config = self.model.config
        if self.keeps_states:
            return sum(kind not in states.WITHOUT_ATTENTION for kind in config.get_text_config().layer_types)
        layers = getattr(config, "num_hidden_layers", None)
        return None if layers is None else int(layers)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        return self._run(attention_of(batch, self.attention), batch)

    def run_counting(self, batch: RaggedBatch) -> tuple[Tensor, int]:
        """Computes the last hidden states [T, H], and how many layers attended through the packed attention."""
        counter = _AttentionCounter(self.attention)
        return self._run(attention_of(batch, counter), batch), counter.calls

    def _run(self, attention: LayerAttention, batch: RaggedBatch) -> Tensor:
        """Computes the last hidden states [T, H], with layers that attend through `attention`."""
        if self._step_adapters is not None:
            self._step_adapters.enter(batch)
        inputs = inputs_of(batch)
        if self.keeps_states and (tails := batch.lengths - batch.attended).any():
            # Layers with a state set the hidden states of tokens that no other one attends to to zero.
            mask = np.repeat(np.tile([True, False], len(tails)), np.stack([batch.attended, tails], axis=1).ravel())
            inputs["attention_mask"] = torch.from_numpy(mask)[None].to(batch.ids.device)
        ragged = AttentionCall(attention=attention, batch=batch)
        output = self.model(**inputs, ragged=ragged, use_cache=False, return_dict=True)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden


def inputs_of(batch: RaggedBatch) -> dict[str, Tensor]:
    """What a model gets of a batch, [1, T] each, by the names that models give it."""
    inputs = {"input_ids": batch.ids, "position_ids": batch.positions}
    if batch.token_types is not None:
        inputs["token_type_ids"] = batch.token_types
    return inputs


def attention_of(batch: RaggedBatch, attention: PackedAttention) -> LayerAttention:
    """What the layers of one run over this batch attend through."""
    return PieceAttention(attention) if batch.pieces else attention


@dataclass(slots=True)
class _AttentionCounter(PackedAttention):
    """An attention that counts its calls. Only the gate uses it."""

    attention: PackedAttention
    calls: int = 0
    name: str = "counting"
    capturable: bool = False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        self.calls += 1
        return self.attention(query, key, value, batch, terms)

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        return self.attention.attend_piece(query, key, value, terms)
