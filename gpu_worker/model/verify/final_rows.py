"""What a model gives for the probes: the rows by which a run in one number format is compared with another.

A text's cosine is that of its vector. Where the model makes none, it is the mean over the text's token vectors, and
over its hidden states where the model makes no token vectors either. The logits of a classifier count as one vector,
since a text may have a single one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.verify.closeness import cosines
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRows:
    """Rows [N, D] of some texts, end to end; `counts` are the rows of each. `logits` [1, M] of all texts, or None."""

    rows: Tensor
    counts: tuple[int, ...]
    logits: Tensor | None

    @classmethod
    def of(cls, heads: Heads, hidden: Tensor, texts: Sequence[Ids], *, classify: bool = True) -> "FinalRows":
        """Makes the rows from hidden states [T, H] of whole texts, in their order.

        `classify`: with logits, for which the gate of heads must have run.
        """
        batch = RaggedBatch.pack(texts, hidden.device)
        with torch.inference_mode():
            if heads.dense is not None:
                rows, counts = heads.dense(hidden, batch), (1,) * len(texts)
            else:
                rows = hidden if heads.multi_vector is None else heads.multi_vector(hidden)
                counts = batch.lengths
            logits = _logits(heads, hidden, batch) if classify else None
        return cls(rows=rows.float(), counts=counts, logits=logits)

    def least_cosine(self, other: "FinalRows") -> float:
        """The least cosine of a text to the same text of `other`; -1 where a number is not finite."""
        by_text = [text.mean() for text in cosines(self.rows.double(), other.rows.double()).split(self.counts)]
        if self.logits is not None and other.logits is not None:
            by_text.append(cosines(self.logits.double(), other.logits.double())[0])
        least = torch.stack(by_text).min()
        return float(least) if torch.isfinite(least) else -1.0


def _logits(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Tensor | None:
    """All logits of a classifier, end to end: [1, M] float32; None where the model is none."""
    logits: Tensor
    if heads.classifier is not None:
        logits = heads.classifier(hidden, batch)
    elif heads.token_classifier is not None:
        logits = heads.token_classifier(hidden)
    else:
        return None
    return logits.float().flatten()[None]
