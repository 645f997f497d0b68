"""An encoder without its head: token ids to hidden states. What all encoders have, those that run by equal length, and
static embeddings; what a config says of positions, rotary embeddings and token types."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.ragged.batch import LengthRun, RaggedBatch
from gpu_worker.ragged.texts import TokenTypes
from shared.errors import ModelRefused

Run = Callable[[RaggedBatch], Tensor]
"""Computes the last hidden states [T, H] of a batch, as an `Encoder` does."""
ENDLESS = 1 << 24
"""Number of positions of a model without a limit: it has relative distances, or a state in place of attention."""


class Encoder:
    """Turns batches of token ids into hidden states; subclasses say how.

    `description` tells clients how the encoder runs, in the card. `uncounted` is the token id that does not count as a
    position, see `RaggedBatch.pack`; None where positions count every token. `token_types` are those that the model is
    fed; None where it reads none. `width` is H, the size of a hidden state; None reads it from the config.
    """

    description: str
    unpacked_reason = ""
    """Why texts of several lengths do not run end to end, in one run; empty where they do."""
    causal = False
    """Whether tokens attend to earlier ones alone, as far as layers say so before they are called."""
    keeps_states = False
    """Whether some layers keep a state from token to token."""
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
        """The dtype that the encoder computes in."""
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


class EqualLengthEncoder(Encoder):
    """A model that cannot run packed: texts of equal length form a dense batch for its own code, which makes positions
    and masks. Nothing is padded, but every length in a step takes a run of its own."""

    def __init__(
        self, model: Any, *, attention: str, token_types: TokenTypes | None, width: int, unpacked_reason: str
    ) -> None:
        """`attention` is transformers' name of the implementation that the model runs: eager or sdpa."""
        super().__init__(model, uncounted=None, token_types=token_types, width=width)
        self.description, self.unpacked_reason = f"equal length ({attention})", unpacked_reason

    def __call__(self, batch: RaggedBatch) -> Tensor:
        return torch.cat([self._run(batch, run) for run in batch.runs()])

    def _run(self, batch: RaggedBatch, run: LengthRun) -> Tensor:
        """Computes the hidden states [N x L, H] of N neighbouring sequences of length L."""
        rows = slice(run.start, run.stop)
        ids = batch.ids[0, rows].view(run.count, run.length)
        mask = torch.ones_like(ids)
        mask[:, run.attended :] = 0
        types = None if batch.token_types is None else batch.token_types[0, rows].view(run.count, run.length)
        return dense_run(self.model, ids, mask, types).flatten(0, 1)


def dense_run(model: Any, ids: Tensor, mask: Tensor, token_types: Tensor | None = None) -> Tensor:
    """Last hidden states [B, L, H] of ids [B, L], computed by the model as it is; the model counts positions itself.

    `mask` [B, L] is 1 where a token is attended to. Raises ModelRefused where the model does not give one hidden state
    a token.
    """
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": token_types, "use_cache": False}
    parameters = inspect.signature(model.forward).parameters
    accepted = {name: value for name, value in inputs.items() if value is not None and name in parameters}
    return hidden_of(model, accepted)


def hidden_of(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Last hidden states [B, L, H] of inputs whose `input_ids` are [B, L]. Raises ModelRefused as `dense_run` does."""
    hidden, shape = getattr(model(**inputs), "last_hidden_state", None), inputs["input_ids"].shape
    if hidden is None:
        raise ModelRefused(f"{type(model).__name__} gives no hidden states of tokens")
    if hidden.shape[:2] != shape:
        raise ModelRefused(f"{type(model).__name__} gives {hidden.shape[1]} hidden states for {shape[1]} tokens")
    states: Tensor = hidden
    return states


class StaticEncoder(Encoder):
    """A static embedding: the hidden state of a token is its row of a table, in any text.

    Pooled by the mean it is an embedding bag (sentence-transformers' StaticEmbedding, model2vec).
    """

    description = "static"

    def __init__(self, table: nn.Embedding) -> None:
        """`table`: V rows of W numbers, on the device that looks them up."""
        super().__init__(table, uncounted=None, token_types=None, width=table.embedding_dim)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Rows [T, W] of the batch's tokens, in the table's dtype."""
        return F.embedding(batch.ids[0], self.model.weight)


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
