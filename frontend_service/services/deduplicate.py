"""Deduplication: equal inputs of a request are computed once, and their results repeated as often as they were sent.

So equal documents get equal scores, to the last bit, in the request's order. numpy only; large requests run in threads.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from frontend_service.domain.results import SPARSE_PAIR_BYTES
from frontend_service.tokenizing.batch import TokenizedBatch
from shared.jobs import JobResult, MaxSim, PackedBytes, Rows, Score, SparseRows, TokenRanges, Work
from shared.vectors import Layout, MultiVectors

Places = npt.NDArray[np.int64]
Check = Callable[[int], None]
"""Raises if a result of so many bytes is too large, before it is made: the length of sparse rows is known late."""
Repeat = Callable[[JobResult, Check], JobResult]
"""Turns the result of the distinct inputs into that of all inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """The distinct inputs among N inputs.

    `first` [U]: the place at which each distinct input stands first. `inverse` [N]: the number of the distinct input
    that each input equals, as in numpy.unique.
    """

    first: list[int]
    inverse: Places

    @classmethod
    def among(cls, keys: Iterable[Hashable]) -> "Distinct":
        numbers: dict[Hashable, int] = {}
        first: list[int] = []
        inverse: list[int] = []
        for place, key in enumerate(keys):
            number = numbers.setdefault(key, len(numbers))
            if number == len(first):
                first.append(place)
            inverse.append(number)
        return cls(first=first, inverse=np.array(inverse, dtype=np.int64))

    @property
    def has_no_repeats(self) -> bool:
        """Whether all inputs are distinct."""
        return len(self.first) == len(self.inverse)


def without_repeats(work: Work, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    """The same work with each input once, and the function that repeats its result; None where no input is repeated."""
    if isinstance(work, Score):
        return _score(work, tokenized)
    if isinstance(work, MaxSim):
        return _max_sim(work, tokenized)
    distinct = Distinct.among(_sequence_keys(tokenized))
    if tokenized.ranges is not None:
        return work, *_spans(tokenized, tokenized.ranges, distinct)
    if distinct.has_no_repeats:
        return work, tokenized, None
    return work, tokenized.select(distinct.first), partial(_repeat_sequences, distinct)


def _spans(tokenized: TokenizedBatch, ranges: TokenRanges, distinct: Distinct) -> tuple[TokenizedBatch, Repeat | None]:
    """The distinct sequences, and the function that gives each span of the request the row of its range."""
    if distinct.has_no_repeats and not tokenized.range_of_span:
        return tokenized, None
    counts = np.array(ranges.counts, dtype=np.int64)[distinct.first]
    rows = _ragged_rows(counts, distinct.inverse)
    if tokenized.range_of_span:
        rows = rows[np.array(tokenized.range_of_span)]
    batch = tokenized if distinct.has_no_repeats else tokenized.select(distinct.first)
    return batch, partial(_repeat_spans, int(counts.sum()), rows)


def _score(work: Score, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    keys = _sequence_keys(tokenized)
    table = _ScoreTable.from_keys(work.layout, keys[: work.queries], keys[work.queries :])
    if table is None:
        return work, tokenized, None
    documents = [work.queries + place for place in table.documents]
    batch = tokenized.select([*table.queries, *documents])
    widths = batch.tokens.lengths[: len(table.queries)]
    return replace(work, queries=len(table.queries)), batch, partial(_repeat_scores, table, widths)


def _max_sim(work: MaxSim, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    keys = _sequence_keys(tokenized) if work.queries is None else _vector_keys(work.queries)
    table = _ScoreTable.from_keys(work.layout, keys, _vector_keys(work.documents))
    if table is None:
        return work, tokenized, None
    documents = work.documents.chosen(table.documents)
    if work.queries is None:
        batch = tokenized.select(table.queries)
        return replace(work, documents=documents), batch, partial(_repeat_scores, table, batch.tokens.lengths)
    queries = work.queries.chosen(table.queries)
    repeat = partial(_repeat_scores, table, queries.lengths)
    return replace(work, queries=queries, documents=documents), tokenized, repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoreTable:
    """The distinct queries and documents, and the places of the request's scores in the table of their scores.

    `rows` [Q]: the row of each query; `columns` [S]: the column of each document. Pairs are rows of a single column.
    """

    queries: list[int]
    documents: list[int]
    rows: Places
    columns: Places

    @classmethod
    def from_keys(
        cls, layout: Layout, queries: Sequence[Hashable], documents: Sequence[Hashable]
    ) -> "_ScoreTable | None":
        """The table for these inputs, by their keys; None where no input is repeated."""
        if layout is Layout.PAIRS:
            pairs = Distinct.among(zip(queries, documents, strict=True))
            if pairs.has_no_repeats:
                return None
            return cls(
                queries=pairs.first, documents=pairs.first, rows=pairs.inverse, columns=np.zeros(1, dtype=np.int64)
            )
        rows, columns = Distinct.among(queries), Distinct.among(documents)
        if rows.has_no_repeats and columns.has_no_repeats:
            return None
        return cls(queries=rows.first, documents=columns.first, rows=rows.inverse, columns=columns.inverse)


def _sequence_keys(tokenized: TokenizedBatch) -> list[Hashable]:
    """A key for each sequence: all that its rows depend on."""
    tokens, zeros = tokenized.tokens, (0,) * len(tokenized.tokens)
    texts = (tokens.ids[4 * start : 4 * stop] for start, stop in pairwise(tokens.offsets))
    options = (tokenized.prompt_lengths, tokenized.second_segments or zeros, tokenized.unattended_tails or zeros)
    ranges = zeros if tokenized.ranges is None else tokenized.ranges.of_each()
    return list(zip(texts, *options, ranges, strict=True))


def _vector_keys(vectors: MultiVectors) -> list[Hashable]:
    """A key for each text: its rows and their scales, as bytes."""
    row, scale = vectors.row_bytes, vectors.data_type.scale_bytes
    return [
        (vectors.data[start * row : stop * row], vectors.scales[start * scale : stop * scale])
        for start, stop in pairwise(vectors.offsets)
    ]


def _repeat_sequences(distinct: Distinct, result: JobResult, check: Check) -> JobResult:
    """Repeats the rows, weights and logits of sequences."""
    inverse, texts = distinct.inverse, len(distinct.first)
    rows, total, row_lengths = inverse, texts, ()
    if result.row_lengths:
        lengths = np.array(result.row_lengths, dtype=np.int64)
        rows, total, row_lengths = _ragged_rows(lengths, inverse), int(lengths.sum()), tuple(lengths[inverse].tolist())
    dense, tokens, sparse = result.dense, result.tokens, result.sparse
    return replace(
        result,
        dense=None if dense is None else _take_rows(dense, texts, inverse),
        tokens=None if tokens is None else _take_rows(tokens, total, rows),
        sparse=None if sparse is None else _take_sparse(sparse, inverse, check),
        row_lengths=row_lengths,
        token_ids=_take(result.token_ids, total, rows),
        scores=_take(result.scores, total, rows),
    )


def _repeat_spans(total: int, rows: Places, result: JobResult, _: Check) -> JobResult:
    """Puts the dense rows of `total` ranges into the order of the request's spans."""
    return replace(result, dense=None if result.dense is None else _take_rows(result.dense, total, rows))


def _repeat_scores(table: _ScoreTable, widths: Sequence[int], result: JobResult, _: Check) -> JobResult:
    """Repeats scores and the winners that explain them: for each score of a query as many as its width [queries]."""
    columns = int(table.columns.max()) + 1
    scores = np.frombuffer(result.scores, dtype="<f4").reshape(-1, columns)[np.ix_(table.rows, table.columns)].tobytes()
    if not result.winners:  # there may be millions of scores, with many winners each
        return replace(result, scores=scores)
    lengths = np.repeat(np.array(widths, dtype=np.int64), columns)
    cells = np.add.outer(table.rows * columns, table.columns).ravel()
    winners, total = _ragged_rows(lengths, cells), int(lengths.sum())
    return replace(
        result,
        scores=scores,
        winners=_take(result.winners, total, winners),
        similarities=_take(result.similarities, total, winners),
    )


def _ragged_rows(lengths: Places, texts: Places) -> Places:
    """The places of the rows of some `texts`, in their order, among texts of these lengths laid end to end."""
    starts, counts = (np.cumsum(lengths) - lengths)[texts], lengths[texts]
    before = np.cumsum(counts) - counts
    rows: Places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return rows


def _take_rows(rows: Rows, total: int, places: Places) -> Rows:
    return replace(rows, data=_take(rows.data, total, places), scales=_take(rows.scales, total, places))


def _take_sparse(vectors: SparseRows, texts: Places, check: Check) -> SparseRows:
    lengths = np.array(vectors.lengths, dtype=np.int64)
    check(SPARSE_PAIR_BYTES * int(lengths[texts].sum()))
    pairs, total = _ragged_rows(lengths, texts), int(lengths.sum())
    return SparseRows(
        lengths=tuple(lengths[texts].tolist()),
        indices=_take(vectors.indices, total, pairs),
        values=_take(vectors.values, total, pairs),
    )


def _take(data: PackedBytes, total: int, places: Places) -> bytes:
    """The entries at these places among `total` entries of equal size; nothing for empty data."""
    if not data:
        return b""
    return np.frombuffer(data, dtype=np.uint8).reshape(total, -1)[places].tobytes()
