"""Equal texts of a request: found before they are tokenised, computed once, their results taken as often as sent.

So equal documents get equal scores, to the last bit, in the request's order. numpy only; large results run in threads.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from frontend_service.domain.limits import FEWER_WEIGHTS, SPARSE_ENTRY_BYTES, Limits
from shared.jobs import JobResult, PackedBytes, Rows, SparseRows

Places = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """The U distinct texts among N texts.

    `first` [U]: the place at which each distinct text stands first. `inverse` [N]: the number of the distinct text that
    each text equals, as in numpy.unique.
    """

    first: list[int]
    inverse: Places

    @property
    def has_repeats(self) -> bool:
        """Whether a text is there twice."""
        return len(self.first) < len(self.inverse)

    @classmethod
    def among(cls, keys: Iterable[Hashable]) -> "Distinct":
        """The distinct ones of these texts, of pairs, or of texts with their spans."""
        numbers: dict[Hashable, int] = {}
        inverse = [numbers.setdefault(key, len(numbers)) for key in keys]
        places = np.array(inverse, dtype=np.int64)
        if len(numbers) == len(inverse):
            return cls(first=inverse, inverse=places)
        first = np.unique(places, return_index=True)[1]
        return cls(first=first.tolist(), inverse=places)

    def once(self, texts: Sequence[T]) -> list[T]:
        """The texts without their repeats."""
        return [texts[place] for place in self.first]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Where the scores of a request are in the table of the scores of distinct queries and documents.

    `rows` [Q]: the row of each query; `columns` [S]: the column of each document. Pairs are rows of a single column.
    """

    rows: Places
    columns: Places

    @classmethod
    def of_pairs(cls, pairs: Distinct) -> "ScoreTable":
        """The table of pairs that are scored one by one."""
        return cls(rows=pairs.inverse, columns=np.zeros(1, dtype=np.int64))

    def total(self, lengths: Sequence[int]) -> int:
        """The tokens of all cells, where those of the table have these `lengths`; made without the cells."""
        across = int(self.columns.max()) + 1
        table = np.array(lengths, dtype=np.int64).reshape(-1, across)
        return int(np.bincount(self.rows) @ table @ np.bincount(self.columns))

    @property
    def cells(self) -> Places:
        """The place of each score in the table, row by row."""
        cells: Places = np.add.outer(self.rows * (int(self.columns.max()) + 1), self.columns).ravel()
        return cells

    def take(self, result: JobResult) -> JobResult:
        """The scores of the request, with the winners that explain them, which are those of a single query."""
        across = int(self.columns.max()) + 1
        table = np.frombuffer(result.scores, dtype="<f4").reshape(-1, across)
        scores = table[np.ix_(self.rows, self.columns)].tobytes()
        if not result.winners:
            return replace(result, scores=scores)
        return replace(
            result,
            scores=scores,
            winners=_take(result.winners, across, self.columns),
            similarities=_take(result.similarities, across, self.columns),
        )


def take_sequences(result: JobResult, inverse: Places, limits: Limits) -> JobResult:
    """The rows, weights and logits of all texts, from those of the distinct ones. Raises ResultTooLarge."""
    texts = int(inverse.max()) + 1
    rows, total, row_lengths = inverse, texts, ()
    if result.row_lengths:
        lengths = np.array(result.row_lengths, dtype=np.int64)
        rows, total, row_lengths = ragged_rows(lengths, inverse), int(lengths.sum()), tuple(lengths[inverse].tolist())
    dense, tokens, sparse = result.dense, result.tokens, result.sparse
    return replace(
        result,
        dense=None if dense is None else _take_rows(dense, texts, inverse),
        tokens=None if tokens is None else _take_rows(tokens, total, rows),
        sparse=None if sparse is None else _take_sparse(sparse, inverse, limits),
        row_lengths=row_lengths,
        token_ids=_take(result.token_ids, total, rows),
        scores=_take(result.scores, total, rows),
    )


def take_spans(result: JobResult, rows: Places, total: int) -> JobResult:
    """The dense rows of the request's spans, from those of `total` token ranges."""
    return replace(result, dense=None if result.dense is None else _take_rows(result.dense, total, rows))


def ragged_rows(lengths: Places, texts: Places) -> Places:
    """The places of the rows of some `texts`, in their order, among texts of these lengths laid end to end."""
    starts, counts = (np.cumsum(lengths) - lengths)[texts], lengths[texts]
    before = np.cumsum(counts) - counts
    rows: Places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return rows


def _take_rows(rows: Rows, total: int, places: Places) -> Rows:
    return replace(rows, data=_take(rows.data, total, places), scales=_take(rows.scales, total, places))


def _take_sparse(vectors: SparseRows, texts: Places, limits: Limits) -> SparseRows:
    lengths = np.array(vectors.lengths, dtype=np.int64)
    limits.check_reply(SPARSE_ENTRY_BYTES * int(lengths[texts].sum()), FEWER_WEIGHTS)
    entries, total = ragged_rows(lengths, texts), int(lengths.sum())
    return SparseRows(
        lengths=tuple(lengths[texts].tolist()),
        indices=_take(vectors.indices, total, entries),
        values=_take(vectors.values, total, entries),
    )


def _take(data: PackedBytes, total: int, places: Places) -> bytes:
    """The entries at these places among `total` entries of equal size; nothing for empty data."""
    if not data:
        return b""
    return np.frombuffer(data, dtype=np.uint8).reshape(total, -1)[places].tobytes()
