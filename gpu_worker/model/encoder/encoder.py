"""A transformers encoder without its head: token ids to hidden states."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import TokenTypes

ENDLESS = 1 << 24
"""Positions of a model that has no limit: relative distances, or a state in place of attention."""


class Encoder:
    """Runs batches; which way is the subclass's affair.

    `way` names it for the card. `uncounted` is the token id that positions do not count, see `RaggedBatch.pack`;
    `token_types`: those that it is fed with, None where it reads none. `width`: H, the numbers of a hidden state.
    """

    way: str
    padded = 0
    """Tokens so far that were computed beside those of batches."""

    def __init__(self, model: Any, *, uncounted: int | None, token_types: TokenTypes | None, width: int | None) -> None:
        self.model = model
        self.uncounted = uncounted
        self.token_types = token_types
        self.width = int(model.config.get_text_config().hidden_size) if width is None else width

    @property
    def as_written(self) -> "Encoder":
        """The same, layers not compiled and nothing captured."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The number format it computes in."""
        found: torch.dtype = next(each.dtype for each in self.model.parameters())
        return found

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        found: torch.device = next(each.device for each in self.model.parameters())
        return found

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H] of a packed batch, in the encoder's dtype."""
        raise NotImplementedError


def uncounted_id_of(model: nn.Module) -> int | None:
    """The token id that the model's own code gives no position of its own: the padding id of RoBERTa's kind."""
    for module in model.modules():
        if any(hasattr(module, f"create_position_ids_from_{source}") for source in ("input_ids", "inputs_embeds")):
            return int(module.padding_idx)  # type: ignore[arg-type]
    return None


def positions_of(config: Any, uncounted: int | None) -> int:
    """How many tokens a sequence may have: the learned positions that are left after those that are not counted."""
    known = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "max_seq_len", 0) or 0)
    if known < 1 or config.model_type in BY_DISTANCE:
        return ENDLESS
    return known if uncounted is None else known - uncounted - 1


BY_DISTANCE = {"t5", "mt5", "umt5", "longt5", "switch_transformers"}
"""Told apart by distance alone: what their configs call positions is what they were trained on."""


def rotary_of_the_step(config: Any) -> str | None:
    """The rope type that looks at the longest text of a step, or at those before it, and so changes with them."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for each in (parameters, *parameters.values()):
        kind = each.get("rope_type") or each.get("type") if isinstance(each, dict) else None
        if kind in ("dynamic", "longrope"):
            return str(kind)
    return None


def takes_token_types(model: Any) -> bool:
    """Whether it reads token types, of which it has several; a family that names no number of them takes any."""
    several = getattr(model.config, "type_vocab_size", None)
    named = "token_type_ids" in inspect.signature(model.forward).parameters
    return named and (several is None or int(several) > 1)
