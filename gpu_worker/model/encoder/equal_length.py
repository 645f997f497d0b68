"""The execution mode of models that cannot run packed: texts of equal length form a dense batch for the model's own
attention.

Nothing is padded, but every length in a step takes a run of its own.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import LengthRun, RaggedBatch
from gpu_worker.ragged.texts import TokenTypes
from shared.errors import ModelRefused


class EqualLengthEncoder(Encoder):
    """An unmodified encoder that makes its own positions and masks."""

    def __init__(self, model: Any, *, attention: str, token_types: TokenTypes | None, width: int) -> None:
        """`attention` is transformers' name of the implementation that the model runs: eager or sdpa."""
        super().__init__(model, uncounted=None, token_types=token_types, width=width)
        self.description = f"equal length ({attention})"

    def __call__(self, batch: RaggedBatch) -> Tensor:
        return torch.cat([self._run(batch, run) for run in batch.runs()])

    def _run(self, batch: RaggedBatch, run: LengthRun) -> Tensor:
        """Hidden states [N x L, H] of N neighbouring sequences of length L."""
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
