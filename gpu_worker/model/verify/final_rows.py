"""What a model gives for the probes: the rows by which a run in one number format is compared with another.

These are its vectors, and the mean over a text's token vectors where it has a projection for them or makes no others.
Logits, and the weights of tokens, are numbers and no vectors: those of all texts count as one vector. Where a model
makes none of these, its hidden states count as token vectors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import SpladeHead
from gpu_worker.model.verify.closeness import cosines
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.token_types import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRows:
    """Rows [N, D] of an output: `counts` of them belong to one text after the other."""

    numbers: Tensor
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRows:
    """The rows of every output that counts, in the order in which a model of the same files makes them again."""

    outputs: tuple[OutputRows, ...]

    @classmethod
    def of(cls, heads: Heads, hidden: Tensor, texts: Sequence[Ids], *, vectors_alone: bool = False) -> "FinalRows":
        """Makes the rows from hidden states [T, H] of whole texts, in their order.

        The gate of heads must have run, unless `vectors_alone` leaves out what transformers' own heads make.
        """
        batch = RaggedBatch.pack(texts, hidden.device)
        with torch.inference_mode():
            outputs = [*_vectors(heads, hidden, batch), *([] if vectors_alone else _numbers(heads, hidden, batch))]
        return cls(outputs=tuple(outputs) or (OutputRows(numbers=hidden, counts=batch.lengths),))

    def least_cosine(self, other: "FinalRows") -> float:
        """The least cosine of a text to the same text of `other`, over all outputs; -1 where one is not finite."""
        by_text = [
            text.mean()
            for mine, theirs in zip(self.outputs, other.outputs, strict=True)
            for text in cosines(mine.numbers.double(), theirs.numbers.double()).split(mine.counts)
        ]
        least = torch.stack(by_text).min()
        return float(least) if torch.isfinite(least) else -1.0


def _vectors(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Iterator[OutputRows]:
    """The vectors of texts, and those of tokens where these count."""
    if heads.dense is not None:
        yield OutputRows(numbers=heads.dense(hidden, batch), counts=(1,) * len(batch.lengths))
    if heads.multi_vector is not None and (heads.dense is None or len(heads.multi_vector.layers)):
        yield OutputRows(numbers=heads.multi_vector(hidden), counts=batch.lengths)


def _numbers(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Iterator[OutputRows]:
    """Sparse vectors and weights, and logits."""
    if isinstance(heads.sparse, SpladeHead):
        count = len(batch.lengths)
        text_of_row = torch.from_numpy(np.repeat(np.arange(count), batch.lengths)).to(hidden.device)
        yield OutputRows(numbers=heads.sparse(hidden, text_of_row, count), counts=(1,) * count)
    elif heads.sparse is not None:
        yield OutputRows(numbers=heads.sparse(hidden)[None], counts=(1,))
    if heads.classifier is not None:
        yield OutputRows(numbers=heads.classifier(hidden, batch).flatten()[None], counts=(1,))
    if heads.token_classifier is not None:
        yield OutputRows(numbers=heads.token_classifier(hidden).flatten()[None], counts=(1,))
