"""Sparse vectors that a step makes once for all jobs, and each job's share of them.

They are made on the host of what was shipped.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.heads import sparse_vectors
from gpu_worker.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts, Ids
from gpu_worker.step.sequences import Member
from gpu_worker.step.shipment import Shipment


class SparseShare:
    """A job's sequences `start` to `stop` of a group that wants sparse vectors."""

    def __init__(self, group: "SparseGroup", start: int, stop: int) -> None:
        self._group, self._start, self._stop = group, start, stop

    def vectors(self) -> tuple[list[Vector], bool]:
        """One a sequence, once the shipment arrived, and whether all weights were numbers."""
        return self._group.vectors(self._start, self._stop)


class SparseGroup:
    """All sparse vectors of a step with as many weights each; they are made on the host of what was shipped."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._members: list[Member] = []
        self._count = 0
        self._slots: list[int] = []
        self._shipment: Shipment | None = None
        self._dropped: Ids | None = None

    def add(self, member: Member) -> SparseShare:
        start, self._count = self._count, self._count + len(member)
        self._members.append(member)
        return SparseShare(self, start, self._count)

    @property
    def places(self) -> Counts:
        """[n] in the batch."""
        return np.concatenate([member.places for member in self._members])

    def ship_rows(self, weights: Tensor, shipment: Shipment) -> None:
        """weights [n, vocabulary] float32: whole, or their largest with their ids."""
        self._shipment = shipment
        whole = not self._top_k or self._top_k >= weights.shape[1]
        sound = shipment.add(torch.isfinite(weights.sum(dim=1)))
        if whole:
            self._slots = [sound, shipment.add(weights)]
        else:
            values, ids = weights.topk(self._top_k, dim=1)
            self._slots = [sound, shipment.add(values), shipment.add(ids.int())]

    def ship_tokens(self, weights: Tensor, dropped: Ids, shipment: Shipment) -> None:
        """weights [tokens of the n sequences] float32: lexical ones, a number a token."""
        self._shipment, self._dropped = shipment, dropped
        self._slots = [shipment.add(weights)]

    def vectors(self, start: int, stop: int) -> tuple[list[Vector], bool]:
        assert self._shipment is not None
        shipped = [self._shipment.arrays[slot] for slot in self._slots]
        if self._dropped is not None:
            return self._of_tokens(shipped[0], start, stop)
        values = shipped[1][start:stop]
        sound = bool(shipped[0][start:stop].all())
        if len(shipped) == 2:
            return [sparse_vectors.of_row(row) for row in values], sound
        return [sparse_vectors.of_pairs(*pair) for pair in zip(shipped[2][start:stop], values, strict=True)], sound

    def _of_tokens(self, weights: npt.NDArray[np.generic], start: int, stop: int) -> tuple[list[Vector], bool]:
        texts = [member.sequences.one(number) for member in self._members for number in member.chosen.tolist()]
        ends = np.cumsum([0, *map(len, texts)])
        own = weights[ends[start] : ends[stop]]
        assert self._dropped is not None
        vectors = sparse_vectors.of_tokens(texts[start:stop], np.nan_to_num(own), self._dropped, self._top_k)
        return vectors, bool(np.isfinite(own).all())
