"""The way of models that cannot run packed: texts of equal length as a dense batch, through the model's own attention.

Nothing is padded. What it costs is that each length of a step is a run by itself.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import LengthRun, RaggedBatch
from gpu_worker.ragged.token_types import TokenTypes
from shared.errors import ModelRefused


class EqualLengthEncoder(Encoder):
    """An unmodified encoder, with positions and masks of its own making."""

    def __init__(self, model: Any, *, own: str, token_types: TokenTypes | None, width: int) -> None:
        """`own`: which of transformers' implementations of attention it runs, eager or sdpa."""
        super().__init__(model, uncounted=None, token_types=token_types, width=width)
        self.way = f"equal length ({own})"

    def __call__(self, batch: RaggedBatch) -> Tensor:
        return torch.cat([self._run(batch, run) for run in batch.runs()])

    def _run(self, batch: RaggedBatch, run: LengthRun) -> Tensor:
        """[N x L, H] of N neighbours of length L."""
        rows = slice(run.start, run.stop)
        ids = batch.ids[0, rows].view(run.count, run.length)
        mask = torch.ones_like(ids)
        mask[:, run.attended :] = 0
        types = None if batch.token_types is None else batch.token_types[0, rows].view(run.count, run.length)
        return dense_run(self.model, ids, mask, types).flatten(0, 1)


def dense_run(model: Any, ids: Tensor, mask: Tensor, token_types: Tensor | None = None) -> Tensor:
    """Last hidden states [B, L, H] of ids [B, L] by the model as it stands; it counts positions.

    `mask` [B, L] is 1 where a token is attended to. Raises ModelRefused where the model gives no state a token.
    """
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": token_types, "use_cache": False}
    known = inspect.signature(model.forward).parameters
    given = {name: each for name, each in inputs.items() if each is not None and name in known}
    return hidden_of(model, given)


def hidden_of(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Last hidden states [B, L, H] of inputs of which `input_ids` are [B, L]. Raises ModelRefused as `dense_run`."""
    hidden, shape = getattr(model(**inputs), "last_hidden_state", None), inputs["input_ids"].shape
    if hidden is None:
        raise ModelRefused(f"{type(model).__name__} gives no hidden states of tokens")
    if hidden.shape[:2] != shape:
        raise ModelRefused(f"{type(model).__name__} gives {hidden.shape[1]} hidden states for {shape[1]} tokens")
    states: Tensor = hidden
    return states
