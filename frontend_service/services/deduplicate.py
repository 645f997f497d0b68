"""Inputs of a request that are equal, ids or bytes, are computed once and answered as often as they were sent.

So equal documents get one score, to the last bit, and keep the request's order. numpy; large requests in threads.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from frontend_service.tokenizing.batch import TokenizedBatch
from shared.jobs import JobResult, MaxSim, PackedBytes, Rows, Score, SparseRows, Work
from shared.vectors import Layout, MultiVectors

Places = npt.NDArray[np.int64]
Check = Callable[[int], None]
"""Raises where an answer of so many bytes is too large, before it is made: sparse rows tell their lengths late."""
Repeat = Callable[[JobResult, Check], JobResult]
"""Makes the result of the different inputs that of all."""
PAIR_BYTES = 8
"""Of a sparse row's index and weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct:
    """`first` [U]: where each different input stands first; `of` [N]: which of them each input is."""

    first: list[int]
    of: Places

    @classmethod
    def among(cls, keys: Iterable[Hashable]) -> "Distinct":
        numbers: dict[Hashable, int] = {}
        first: list[int] = []
        of: list[int] = []
        for place, key in enumerate(keys):
            number = numbers.setdefault(key, len(numbers))
            if number == len(first):
                first.append(place)
            of.append(number)
        return cls(first=first, of=np.array(of, dtype=np.int64))

    @property
    def all(self) -> bool:
        """Whether no input is equal to another."""
        return len(self.first) == len(self.of)


def without_repeats(work: Work, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    """The same request with each input once, and what makes its result whole again; None where nothing is repeated."""
    if isinstance(work, Score):
        return _score(work, tokenized)
    if isinstance(work, MaxSim):
        return _max_sim(work, tokenized)
    found = Distinct.among(_sequences(tokenized))
    if found.all:
        return work, tokenized, None
    return work, tokenized.part(found.first), partial(_of_sequences, found)


def _score(work: Score, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    keys = _sequences(tokenized)
    met = _Meeting.of(work.layout, keys[: work.queries], keys[work.queries :])
    if met is None:
        return work, tokenized, None
    documents = [work.queries + place for place in met.documents]
    kept = tokenized.part([*met.queries, *documents])
    widths = kept.tokens.lengths[: len(met.queries)]
    return replace(work, queries=len(met.queries)), kept, partial(_of_scores, met, widths)


def _max_sim(work: MaxSim, tokenized: TokenizedBatch) -> tuple[Work, TokenizedBatch, Repeat | None]:
    queries = _sequences(tokenized) if work.queries is None else _vectors(work.queries)
    met = _Meeting.of(work.layout, queries, _vectors(work.documents))
    if met is None:
        return work, tokenized, None
    documents = work.documents.chosen(met.documents)
    if work.queries is None:
        kept = tokenized.part(met.queries)
        return replace(work, documents=documents), kept, partial(_of_scores, met, kept.tokens.lengths)
    given = work.queries.chosen(met.queries)
    return replace(work, queries=given, documents=documents), tokenized, partial(_of_scores, met, given.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """Which queries and documents are left, and where in the table of their scores the request's stand.

    `rows` [Q], `columns` [S]; pairs are rows of one column.
    """

    queries: list[int]
    documents: list[int]
    rows: Places
    columns: Places

    @classmethod
    def of(cls, layout: Layout, queries: Sequence[Hashable], documents: Sequence[Hashable]) -> "_Meeting | None":
        """None where nothing is repeated."""
        if layout is Layout.PAIRS:
            pairs = Distinct.among(zip(queries, documents, strict=True))
            if pairs.all:
                return None
            return cls(queries=pairs.first, documents=pairs.first, rows=pairs.of, columns=np.zeros(1, dtype=np.int64))
        rows, columns = Distinct.among(queries), Distinct.among(documents)
        if rows.all and columns.all:
            return None
        return cls(queries=rows.first, documents=columns.first, rows=rows.of, columns=columns.of)


def _sequences(tokenized: TokenizedBatch) -> list[Hashable]:
    """What a sequence's rows depend on."""
    tokens, nothing = tokenized.tokens, (0,) * len(tokenized.tokens)
    texts = (tokens.ids[4 * start : 4 * stop] for start, stop in pairwise(tokens.offsets))
    options = (tokenized.prompt_lengths, tokenized.second_segments or nothing, tokenized.tails or nothing)
    return list(zip(texts, *options, strict=True))


def _vectors(vectors: MultiVectors) -> list[Hashable]:
    """Each text's rows and their scales, as bytes."""
    row, scale = vectors.row_bytes, vectors.data_type.scale_bytes
    return [
        (vectors.data[start * row : stop * row], vectors.scales[start * scale : stop * scale])
        for start, stop in pairwise(vectors.offsets)
    ]


def _of_sequences(found: Distinct, result: JobResult, check: Check) -> JobResult:
    """Rows, weights and logits of sequences."""
    of, texts = found.of, len(found.first)
    rows, total, row_lengths = of, texts, ()
    if result.row_lengths:
        lengths = np.array(result.row_lengths, dtype=np.int64)
        rows, total, row_lengths = _ragged(lengths, of), int(lengths.sum()), tuple(lengths[of].tolist())
    dense, tokens, sparse = result.dense, result.tokens, result.sparse
    return replace(
        result,
        dense=None if dense is None else _rows(dense, texts, of),
        tokens=None if tokens is None else _rows(tokens, total, rows),
        sparse=None if sparse is None else _sparse(sparse, of, check),
        row_lengths=row_lengths,
        token_ids=_take(result.token_ids, total, rows),
        scores=_take(result.scores, total, rows),
    )


def _of_scores(met: _Meeting, widths: Sequence[int], result: JobResult, _: Check) -> JobResult:
    """Scores, and what explains them: `widths` [queries] numbers a score, one query after the other."""
    columns = int(met.columns.max()) + 1
    scores = np.frombuffer(result.scores, dtype="<f4").reshape(-1, columns)[np.ix_(met.rows, met.columns)].tobytes()
    if not result.winners:  # there may be millions of scores, and many numbers to each
        return replace(result, scores=scores)
    lengths = np.repeat(np.array(widths, dtype=np.int64), columns)
    explained, total = _ragged(lengths, np.add.outer(met.rows * columns, met.columns).ravel()), int(lengths.sum())
    return replace(
        result,
        scores=scores,
        winners=_take(result.winners, total, explained),
        similarities=_take(result.similarities, total, explained),
    )


def _ragged(lengths: Places, of: Places) -> Places:
    """Rows of the texts `of`, one after the other, among texts of these lengths end to end."""
    starts, counts = (np.cumsum(lengths) - lengths)[of], lengths[of]
    before = np.cumsum(counts) - counts
    rows: Places = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return rows


def _rows(rows: Rows, total: int, of: Places) -> Rows:
    return replace(rows, data=_take(rows.data, total, of), scales=_take(rows.scales, total, of))


def _sparse(vectors: SparseRows, of: Places, check: Check) -> SparseRows:
    lengths = np.array(vectors.lengths, dtype=np.int64)
    check(PAIR_BYTES * int(lengths[of].sum()))
    pairs, total = _ragged(lengths, of), int(lengths.sum())
    return SparseRows(
        lengths=tuple(lengths[of].tolist()),
        indices=_take(vectors.indices, total, pairs),
        values=_take(vectors.values, total, pairs),
    )


def _take(data: PackedBytes, total: int, places: Places) -> bytes:
    """Entries of equal size, `total` of them; nothing stays nothing."""
    if not data:
        return b""
    return np.frombuffer(data, dtype=np.uint8).reshape(total, -1)[places].tobytes()
