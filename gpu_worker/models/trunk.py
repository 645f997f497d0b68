"""An unmodified transformers encoder that runs packed batches."""

import inspect

import torch
from torch import Tensor, nn

from gpu_worker.models.attention import AttentionCall, PackedAttention
from gpu_worker.models.recipe import ModelRefused
from gpu_worker.ragged_batch import RaggedBatch


class Trunk:
    """Token ids to hidden states.

    `first_position` is where positions start (RoBERTa: padding id + 1); `token_types`: whether the second text of a
    pair is embedded differently.
    """

    def __init__(
        self, model: nn.Module, attention: PackedAttention, first_position: int, token_types: bool = False
    ) -> None:
        self.model = model
        self.attention = attention
        self.first_position = first_position
        self.token_types = token_types

    @property
    def dtype(self) -> torch.dtype:
        """The number format it computes in."""
        return next(each.dtype for each in self.model.parameters())

    @property
    def width(self) -> int:
        """H, the numbers of a hidden state."""
        return int(self.model.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(each.device for each in self.model.parameters())

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H] of a packed batch, in the trunk's dtype."""
        return self.run(batch)[0]

    def run(self, batch: RaggedBatch) -> tuple[Tensor, int]:
        """The same, and how many layers attended through the packed attention."""
        call = AttentionCall(attention=self.attention, batch=batch)
        types = {} if batch.token_types is None else {"token_type_ids": batch.token_types}
        output = self.model(
            input_ids=batch.ids, position_ids=batch.positions, ragged=call, use_cache=False, return_dict=True, **types
        )
        return output.last_hidden_state[0], call.count


def first_position_of(model: nn.Module) -> int:
    """Where the model's own code starts counting positions: RoBERTa-like embeddings skip the padding id."""
    for module in model.modules():
        if any(hasattr(module, f"create_position_ids_from_{source}") for source in ("input_ids", "inputs_embeds")):
            return int(module.padding_idx) + 1  # type: ignore[arg-type]
    return 0


def padding_free_positions(config: object, first_position: int) -> int:
    """How many tokens a sequence may have: the learned positions that are left after the first."""
    return int(getattr(config, "max_position_embeddings", 0) or 512) - first_position


def check_rotary(config: object) -> None:
    """Raises ModelRefused for rotary positions that depend on the longest text of a step, and so on batch mates."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for each in (parameters, *parameters.values()):
        kind = each.get("rope_type") or each.get("type") if isinstance(each, dict) else None
        if kind in ("dynamic", "longrope"):
            raise ModelRefused(f"config.json: rope_type {kind} changes a text's vector with the longest text beside it")


def takes_token_types(model: nn.Module) -> bool:
    """Whether a second text of a pair has a token type of its own."""
    several = int(getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return several and "token_type_ids" in inspect.signature(model.forward).parameters
