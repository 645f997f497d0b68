"""Sparse vectors that a step makes once for all job slices; they are built on the host from downloaded weights."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.step.download import DownloadedArray, StepDownload
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts, Ids


class SparseOutput:
    """Sparse vectors of one job slice, whose sequences and tokens begin at these places of a group's."""

    def __init__(self, group: "SparseGroup", packed: PackedSequences, first: int, first_token: int) -> None:
        self._group, self._packed = group, packed
        self._rows = slice(first, first + len(packed))
        self._tokens = slice(first_token, first_token + packed.tokens)

    def vectors(self) -> tuple[list[Vector], bool]:
        """The vector of each sequence, and whether all weights were finite numbers, once the download arrived."""
        return self._group.vectors(self._packed, self._rows, self._tokens)


class SparseGroup:
    """All sparse vectors of a step with at most `top_k` weights each (0: no limit): n vectors."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._packed: list[PackedSequences] = []
        self._count = self._tokens = 0
        self._weights: list[DownloadedArray] = []
        self._dropped: Ids | None = None

    def add_sequences(self, packed: PackedSequences) -> SparseOutput:
        """Requests the sparse vectors of a job slice's sequences."""
        output = SparseOutput(self, packed, self._count, self._tokens)
        self._count, self._tokens = self._count + len(packed), self._tokens + packed.tokens
        self._packed.append(packed)
        return output

    @property
    def places(self) -> Counts:
        """Places of all sequences in the batch, [n]."""
        return np.concatenate([packed.places for packed in self._packed])

    def download_rows(self, weights: Tensor, download: StepDownload) -> None:
        """Downloads weights [n, vocabulary] float32: all of them, or the largest ones of each row with their ids."""
        whole = not self._top_k or self._top_k >= weights.shape[1]
        finite = download.add_tensor(torch.isfinite(weights.sum(dim=1)))
        if whole:
            self._weights = [finite, download.add_tensor(weights)]
        else:
            values, ids = weights.topk(self._top_k, dim=1)
            self._weights = [finite, download.add_tensor(values), download.add_tensor(ids.int())]

    def download_tokens(self, weights: Tensor, dropped: Ids, download: StepDownload) -> None:
        """Downloads lexical weights [tokens of the n sequences] float32; ids in `dropped` carry no weight."""
        self._dropped = dropped
        self._weights = [download.add_tensor(weights)]

    def vectors(self, packed: PackedSequences, rows: slice, tokens: slice) -> tuple[list[Vector], bool]:
        """Vectors of one job slice from its `rows` or `tokens` of the weights, and whether these were finite."""
        weights = [downloaded.array for downloaded in self._weights]
        if self._dropped is not None:
            return self._of_tokens(packed, weights[0][tokens], self._dropped)
        values, finite = weights[1][rows], bool(weights[0][rows].all())
        if len(weights) == 2:
            return [sparse_vectors.of_row(row) for row in values], finite
        return [sparse_vectors.of_pairs(*pair) for pair in zip(weights[2][rows], values, strict=True)], finite

    def _of_tokens(
        self, packed: PackedSequences, weights: npt.NDArray[np.generic], dropped: Ids
    ) -> tuple[list[Vector], bool]:
        texts = [packed.sequences.ids_of(number) for number in packed.numbers.tolist()]
        vectors = sparse_vectors.of_tokens(texts, np.nan_to_num(weights), dropped, self._top_k)
        return vectors, bool(np.isfinite(weights).all())
