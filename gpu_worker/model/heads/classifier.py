"""Logits of labels, for texts and for tokens. Tensors without I/O."""

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.pooling import Pooling
from gpu_worker.model.heads.transformers_head import TransformersHead
from gpu_worker.ragged.texts import PackedTexts
from gpu_worker.ragged.token_types import Counts
from gpu_worker.ragged.upload import Upload

ToLogits = Callable[[Tensor], Tensor]
"""Computes logits on the device: hidden [T, H] -> [n, labels] float32."""


class SequenceClassifier(nn.Module):
    """Logits of whole texts."""

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        """Prepares on the host what computes the logits of the texts at `places` [n] of the batch."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, batch: PackedTexts) -> Tensor:
        """Logits of all texts of a batch: hidden [T, H] -> [S, labels] float32."""
        upload = Upload(hidden.device)
        to_logits = self.plan(batch, np.arange(len(batch.lengths)), upload)
        upload.send()
        return to_logits(hidden)


LATE = "late"
"""Pooling of logits: the head reads every row, and a text's logits are their mean (EuroBERT, arXiv:2503.05500)."""


LAST_REAL = "last that is not padding"
"""The last row whose token id is not the padding id, as decoders of transformers choose it.

Where the padding id also ends texts, that is the row before the end."""


class HeadClassifier(SequenceClassifier):
    """A transformers ForSequenceClassification. `pooling` says which rows it reads: cls, mean, lasttoken, LAST_REAL or
    LATE."""

    def __init__(self, head: TransformersHead, pooling: str, padding: int | None = None) -> None:
        """`padding` is the id of the model's padding token."""
        super().__init__()
        self.head, self.pooling, self.padding = head, pooling, padding

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        if self.pooling == LATE:
            mean = _pooling(batch, places, "mean", upload)
            return lambda hidden: mean(self.head(hidden[:, None]))
        if self.pooling == LAST_REAL:
            last = upload.add_array(self._last_real(batch)[places])
            return lambda hidden: self.head(hidden.index_select(0, last.tensor)[:, None]).float()
        pooled = _pooling(batch, places, self.pooling, upload)
        return lambda hidden: self.head(pooled(hidden).to(hidden.dtype)[:, None]).float()

    def _last_real(self, batch: PackedTexts) -> Counts:
        """Rows [S] of each text's last token that is not padding; the first row of a text of padding alone."""
        starts, rows = batch.offsets[:-1], np.arange(batch.total)
        real: Counts = np.where(batch.tokens == self.padding, -1, rows)
        return np.maximum(np.maximum.reduceat(real, starts), starts)


class PooledClassifier(SequenceClassifier):
    """Layers over pooled rows: a CrossEncoder that consists of sentence-transformers modules."""

    def __init__(self, dense: DenseHead) -> None:
        super().__init__()
        self.dense = dense

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        starts, lengths = batch.offsets[places], np.diff(batch.offsets)[places]
        return self.dense.plan(starts, lengths, np.zeros_like(lengths), upload)


class YesNoClassifier(SequenceClassifier):
    """Log-odds of two tokens as the next one after a text (Qwen3-Reranker, arXiv:2506.05176).

    Two rows of the output matrix suffice; logits of the whole vocabulary are never computed.
    """

    def __init__(self, rows: Tensor, softcap: float | None) -> None:
        """`rows` of the output matrix: [2, H] for yes and no, [1, H] for yes alone. `softcap` is Gemma2's bound."""
        super().__init__()
        self.linear = nn.Linear(rows.shape[1], len(rows), bias=False, device=rows.device)
        self.linear.load_state_dict({"weight": rows})
        self.softcap = softcap

    def plan(self, batch: PackedTexts, places: Counts, upload: Upload) -> ToLogits:
        last = _pooling(batch, places, "lasttoken", upload)
        return lambda hidden: self._odds(last(hidden))

    def _odds(self, last: Tensor) -> Tensor:
        """Log-odds of the last rows: [n, H] float32 -> [n, 1]."""
        logits: Tensor = self.linear(last)
        if self.softcap is not None:
            logits = (logits / self.softcap).tanh() * self.softcap
        return logits[:, :1] - logits[:, 1:] if logits.shape[1] == 2 else logits


def _pooling(batch: PackedTexts, places: Counts, mode: str, upload: Upload) -> Pooling:
    lengths = np.diff(batch.offsets)[places]
    return Pooling(batch.offsets[places], lengths, np.zeros_like(lengths), (mode,), upload)


class TokenClassifier(nn.Module):
    """Logits of single tokens, by a transformers ForTokenClassification or by layers."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, rows: Tensor) -> Tensor:
        """rows [N, H] -> [N, labels] float32."""
        output: Tensor = self.head(rows[None])
        return output[0].float()
