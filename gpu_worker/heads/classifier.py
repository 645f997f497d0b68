"""Logits of labels, for texts and for tokens. Tensors without I/O."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.heads.dense import DenseHead
from gpu_worker.heads.given import Head
from gpu_worker.heads.pooling import pool
from gpu_worker.ragged.batch import Counts, RaggedBatch, to_device


class SequenceClassifier(Protocol):
    """Logits of whole texts."""

    def __call__(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """hidden [T, H] -> [S, labels] float32."""


LATE = "late"
"""A head that reads every row, the mean of whose logits is the text's (EuroBERT, arXiv:2503.05500)."""


LAST_REAL = "last that is not padding"
"""Decoders of transformers look for it by id: where padding is also the end of a text, the row before that."""


class HeadClassifier(nn.Module):
    """A transformers ForSequenceClassification on the rows that it reads: cls, mean, lasttoken, LAST_REAL or LATE."""

    def __init__(self, head: Head, pooling: str, padding: int | None = None) -> None:
        """`padding`: the id of the model's padding token."""
        super().__init__()
        self.head, self.pooling, self.padding = head, pooling, padding

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        if self.pooling == LATE:
            return pool(self.head(hidden[:, None]), batch, ("mean",))
        if self.pooling == LAST_REAL:
            rows = hidden.index_select(0, to_device(torch.from_numpy(self._last_real(batch)), hidden.device))
        else:
            rows = pool(hidden, batch, (self.pooling,)).to(hidden.dtype)
        output: Tensor = self.head(rows[:, None])
        return output.float()

    def _last_real(self, batch: RaggedBatch) -> Counts:
        """[S] rows of the last token that is not padding; the first row of a text that is nothing else."""
        starts, rows = batch.offsets[:-1], np.arange(batch.total)
        real: Counts = np.where(batch.tokens == self.padding, -1, rows)
        return np.maximum(np.maximum.reduceat(real, starts), starts)


class PooledClassifier(nn.Module):
    """Layers over pooled rows, as a CrossEncoder of sentence-transformers modules has them."""

    def __init__(self, dense: DenseHead) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        output: Tensor = self.dense(hidden, batch)
        return output


class YesNoClassifier(nn.Module):
    """Log-odds of two next tokens after a text (Qwen3-Reranker, arXiv:2506.05176).

    Two rows of the output matrix suffice; the logits of the vocabulary are never made.
    """

    def __init__(self, rows: Tensor, softcap: float | None) -> None:
        """rows [2, H]: those of yes and no; [1, H]: yes alone. `softcap`: Gemma2's bound of logits."""
        super().__init__()
        self.register_buffer("rows", rows)
        self.rows: Tensor
        self.softcap = softcap

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """hidden [T, H] -> [S, 1] float32."""
        logits = pool(hidden, batch, ("lasttoken",)) @ self.rows.float().T
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return logits[:, :1] - logits[:, 1:] if len(self.rows) == 2 else logits


class TokenClassifier(nn.Module):
    """A transformers ForTokenClassification, or layers, on any rows."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, rows: Tensor) -> Tensor:
        """rows [N, H] -> [N, labels] float32."""
        output: Tensor = self.head(rows[None])
        return output[0].float()
