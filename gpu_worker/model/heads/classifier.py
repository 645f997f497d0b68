"""Logits of labels, for texts and for tokens. Tensors without I/O."""

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.pooling import Pooling
from gpu_worker.model.heads.transformers_head import TransformersHead
from gpu_worker.ragged.batch import Counts, RaggedBatch
from gpu_worker.ragged.upload import Upload

ToLogits = Callable[[Tensor], Tensor]
"""hidden [T, H] -> [n, labels] float32."""


class SequenceClassifier(nn.Module):
    """Logits of whole texts."""

    def plan(self, batch: RaggedBatch, places: Counts, staging: Upload) -> ToLogits:
        """For the texts at these places of the batch, [n]."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """hidden [T, H] -> [S, labels] float32, of all texts of a batch."""
        staging = Upload(hidden.device)
        run = self.plan(batch, np.arange(len(batch.lengths)), staging)
        staging.send()
        return run(hidden)


LATE = "late"
"""A head that reads every row, the mean of whose logits is the text's (EuroBERT, arXiv:2503.05500)."""


LAST_REAL = "last that is not padding"
"""Decoders of transformers look for it by id: where padding is also the end of a text, the row before that."""


class HeadClassifier(SequenceClassifier):
    """A transformers ForSequenceClassification on the rows that it reads: cls, mean, lasttoken, LAST_REAL or LATE."""

    def __init__(self, head: TransformersHead, pooling: str, padding: int | None = None) -> None:
        """`padding`: the id of the model's padding token."""
        super().__init__()
        self.head, self.pooling, self.padding = head, pooling, padding

    def plan(self, batch: RaggedBatch, places: Counts, staging: Upload) -> ToLogits:
        if self.pooling == LATE:
            mean = _pooling(batch, places, "mean", staging)
            return lambda hidden: mean(self.head(hidden[:, None]))
        if self.pooling == LAST_REAL:
            last = staging.add_array(self._last_real(batch)[places])
            return lambda hidden: self.head(hidden.index_select(0, last.tensor)[:, None]).float()
        pooled = _pooling(batch, places, self.pooling, staging)
        return lambda hidden: self.head(pooled(hidden).to(hidden.dtype)[:, None]).float()

    def _last_real(self, batch: RaggedBatch) -> Counts:
        """[S] rows of the last token that is not padding; the first row of a text that is nothing else."""
        starts, rows = batch.offsets[:-1], np.arange(batch.total)
        real: Counts = np.where(batch.tokens == self.padding, -1, rows)
        return np.maximum(np.maximum.reduceat(real, starts), starts)


class PooledClassifier(SequenceClassifier):
    """Layers over pooled rows, as a CrossEncoder of sentence-transformers modules has them."""

    def __init__(self, dense: DenseHead) -> None:
        super().__init__()
        self.dense = dense

    def plan(self, batch: RaggedBatch, places: Counts, staging: Upload) -> ToLogits:
        starts, lengths = batch.offsets[places], np.diff(batch.offsets)[places]
        return self.dense.plan(starts, lengths, np.zeros_like(lengths), staging)


class YesNoClassifier(SequenceClassifier):
    """Log-odds of two next tokens after a text (Qwen3-Reranker, arXiv:2506.05176).

    Two rows of the output matrix suffice; the logits of the vocabulary are never made.
    """

    def __init__(self, rows: Tensor, softcap: float | None) -> None:
        """rows [2, H]: those of yes and no; [1, H]: yes alone. `softcap`: Gemma2's bound of logits."""
        super().__init__()
        self.register_buffer("rows", rows)
        self.rows: Tensor
        self.softcap = softcap

    def plan(self, batch: RaggedBatch, places: Counts, staging: Upload) -> ToLogits:
        last = _pooling(batch, places, "lasttoken", staging)
        return lambda hidden: self._odds(last(hidden))

    def _odds(self, last: Tensor) -> Tensor:
        """last [n, H] float32 -> [n, 1]."""
        logits = last @ self.rows.float().T
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return logits[:, :1] - logits[:, 1:] if len(self.rows) == 2 else logits


def _pooling(batch: RaggedBatch, places: Counts, mode: str, staging: Upload) -> Pooling:
    lengths = np.diff(batch.offsets)[places]
    return Pooling(batch.offsets[places], lengths, np.zeros_like(lengths), (mode,), staging)


class TokenClassifier(nn.Module):
    """A transformers ForTokenClassification, or layers, on any rows."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, rows: Tensor) -> Tensor:
        """rows [N, H] -> [N, labels] float32."""
        output: Tensor = self.head(rows[None])
        return output[0].float()
