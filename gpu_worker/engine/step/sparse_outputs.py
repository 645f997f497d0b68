"""Sparse vectors that a step makes once for all jobs, and each job's share of them.

They are made on the host of what was shipped.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.sequences import Member
from gpu_worker.model.heads import sparse_vectors
from gpu_worker.model.heads.sparse_vectors import Vector
from gpu_worker.ragged.batch import Counts, Ids


class SparseShare:
    """A job's sequences `start` to `stop` of a group that wants sparse vectors."""

    def __init__(self, group: "SparseGroup", member: Member, first: int, first_token: int) -> None:
        self._group, self._member = group, member
        self._own = slice(first, first + len(member))
        self._tokens = slice(first_token, first_token + member.tokens)

    def vectors(self) -> tuple[list[Vector], bool]:
        """One a sequence, once the shipment arrived, and whether all weights were numbers."""
        return self._group.vectors(self._member, self._own, self._tokens)


class SparseGroup:
    """All sparse vectors of a step with as many weights each; they are made on the host of what was shipped."""

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._members: list[Member] = []
        self._count = self._tokens = 0
        self._slots: list[int] = []
        self._shipment: StepDownload | None = None
        self._dropped: Ids | None = None

    def add(self, member: Member) -> SparseShare:
        share = SparseShare(self, member, self._count, self._tokens)
        self._count, self._tokens = self._count + len(member), self._tokens + member.tokens
        self._members.append(member)
        return share

    @property
    def places(self) -> Counts:
        """[n] in the batch."""
        return np.concatenate([member.places for member in self._members])

    def ship_rows(self, weights: Tensor, shipment: StepDownload) -> None:
        """weights [n, vocabulary] float32: whole, or their largest with their ids."""
        self._shipment = shipment
        whole = not self._top_k or self._top_k >= weights.shape[1]
        sound = shipment.add(torch.isfinite(weights.sum(dim=1)))
        if whole:
            self._slots = [sound, shipment.add(weights)]
        else:
            values, ids = weights.topk(self._top_k, dim=1)
            self._slots = [sound, shipment.add(values), shipment.add(ids.int())]

    def ship_tokens(self, weights: Tensor, dropped: Ids, shipment: StepDownload) -> None:
        """weights [tokens of the n sequences] float32: lexical ones, a number a token."""
        self._shipment, self._dropped = shipment, dropped
        self._slots = [shipment.add(weights)]

    def vectors(self, member: Member, own: slice, tokens: slice) -> tuple[list[Vector], bool]:
        """Those of one member, with its rows of what was shipped, or its tokens."""
        assert self._shipment is not None
        shipped = [self._shipment.arrays[slot] for slot in self._slots]
        if self._dropped is not None:
            return self._of_tokens(member, shipped[0][tokens], self._dropped)
        values, sound = shipped[1][own], bool(shipped[0][own].all())
        if len(shipped) == 2:
            return [sparse_vectors.of_row(row) for row in values], sound
        return [sparse_vectors.of_pairs(*pair) for pair in zip(shipped[2][own], values, strict=True)], sound

    def _of_tokens(self, member: Member, weights: npt.NDArray[np.generic], dropped: Ids) -> tuple[list[Vector], bool]:
        texts = [member.sequences.one(number) for number in member.chosen.tolist()]
        vectors = sparse_vectors.of_tokens(texts, np.nan_to_num(weights), dropped, self._top_k)
        return vectors, bool(np.isfinite(weights).all())
