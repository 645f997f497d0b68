"""A transformers encoder without its head: token ids to hidden states."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.texts import TokenTypes

ENDLESS = 1 << 24
"""Number of positions of a model without a limit: it has relative distances, or a state in place of attention."""


class Encoder:
    """Turns batches of token ids into hidden states; subclasses say how.

    `description` tells clients how the encoder runs, in the card. `uncounted` is the token id that does not count as a
    position, see `RaggedBatch.pack`; None where positions count every token. `token_types` are those that the model is
    fed; None where it reads none. `width` is H, the size of a hidden state; None reads it from the config.
    """

    description: str
    runs_packed = False
    """Whether texts of all lengths run end to end, in one run."""
    causal = False
    """Whether tokens attend to earlier ones alone, as far as layers say so before they are called."""
    padding_tokens = 0
    """Tokens that were computed so far although no batch held them, since graphs have fixed sizes."""

    def __init__(self, model: Any, *, uncounted: int | None, token_types: TokenTypes | None, width: int | None) -> None:
        self.model = model
        self.uncounted = uncounted
        self.token_types = token_types
        self.width = int(model.config.get_text_config().hidden_size) if width is None else width

    @property
    def as_written(self) -> "Encoder":
        """The same encoder without graphs."""
        return self

    @property
    def dtype(self) -> torch.dtype:
        """The number format that the encoder computes in."""
        dtype: torch.dtype = next(parameter.dtype for parameter in self.model.parameters())
        return dtype

    @property
    def device(self) -> torch.device:
        """The device that the encoder computes on."""
        device: torch.device = next(parameter.device for parameter in self.model.parameters())
        return device

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H] of a packed batch, in the encoder's dtype."""
        raise NotImplementedError


def uncounted_id_of(model: nn.Module) -> int | None:
    """The token id that the model's own code does not count as a position: the padding id, in models like RoBERTa."""
    for module in model.modules():
        if any(hasattr(module, f"create_position_ids_from_{source}") for source in ("input_ids", "inputs_embeds")):
            return int(module.padding_idx)  # type: ignore[arg-type]
    return None


def positions_of(config: Any, uncounted: int | None) -> int:
    """The most tokens that a sequence may have: the learned positions, less those that RoBERTa's kind cannot use.

    ENDLESS where the model has no limit.
    """
    learned = int(getattr(config, "max_position_embeddings", 0) or getattr(config, "max_seq_len", 0) or 0)
    if learned < 1 or config.model_type in BY_DISTANCE:
        return ENDLESS
    return learned if uncounted is None else learned - uncounted - 1


BY_DISTANCE = {"t5", "mt5", "umt5", "longt5", "switch_transformers"}
"""Model types that know relative distances alone. Their configs give the length they were trained on as positions."""


def rotary_of_the_step(config: Any) -> str | None:
    """The rope type, if it is one that depends on the longest text of a step or of steps before; None otherwise."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for settings in (parameters, *parameters.values()):
        kind = settings.get("rope_type") or settings.get("type") if isinstance(settings, dict) else None
        if kind in ("dynamic", "longrope"):
            return str(kind)
    return None


def takes_token_types(model: Any) -> bool:
    """Whether the model reads token types and has more than one; a family whose config gives no number takes any."""
    several = getattr(model.config, "type_vocab_size", None)
    reads_types = "token_type_ids" in inspect.signature(model.forward).parameters
    return reads_types and (several is None or int(several) > 1)
