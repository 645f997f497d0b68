"""What a worker should reply to a job: which bytes, of how many rows, and within which bounds. numpy; no transport."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.card import ModelCard
from shared.jobs import ChunkKind, Classify, Encode, Job, MaxSim, Score
from shared.vectors import DataType, Layout, OutputKind

Counts = NDArray[np.int64]
NUMBER_BYTES = 4
"""Bytes of a score, an id, a weight or a winner on the link."""


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of one kind in a reply: `fixed` of them, and more for each token row or each entry of a sparse vector."""

    fixed: int = 0
    row: int = 0
    entry: int = 0

    def size(self, rows: int, entries: int) -> int:
        """All bytes of this kind, with so many token rows and entries."""
        return self.fixed + self.row * rows + self.entry * entries


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRows:
    """Dense rows or token rows: of these `dimensions`, 0 for none; whether of `unit` length."""

    dimensions: int = 0
    unit: bool = False


NO_ROWS = ExpectedRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWinners:
    """An explanation: winners are rows of a document with `document_rows` [S], for each of a query's `columns` [Q]."""

    document_rows: Counts
    columns: Counts
    layout: Layout

    @property
    def count(self) -> int:
        """The number of winners of all scores."""
        return int(self.columns.sum()) * (1 if self.layout is Layout.PAIRS else len(self.document_rows))

    @property
    def bounds(self) -> Counts:
        """The number of rows of the document of each winner, [count]."""
        if self.layout is Layout.PAIRS:
            return np.repeat(self.document_rows, self.columns)
        return np.concatenate([np.repeat(self.document_rows, width) for width in self.columns.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedReply:
    """What the reply to one job must be.

    `kinds`: the bytes of each kind of chunk. `row_counts`: the numbers of token rows that the sequences [S] may have,
    one or two possibilities; empty: no token rows. `dense` and `tokens`: their rows. `sparse`: how many sparse vectors
    there are, of at most `entries` entries each. Ids are below `vocabulary`.
    """

    kinds: Mapping[int, KindBytes]
    row_counts: tuple[Counts, ...] = ()
    dense: ExpectedRows = NO_ROWS
    tokens: ExpectedRows = NO_ROWS
    data_type: DataType = DataType.FLOAT32
    sparse: int = 0
    entries: int = 0
    vocabulary: int = 0
    winners: ExpectedWinners | None = None

    def most(self, kind: int) -> int | None:
        """Most bytes of a kind; None for one that was not asked for."""
        size = self.kinds.get(kind)
        if size is None:
            return None
        return size.size(int(self.row_counts[0].sum()) if size.row else 0, self.sparse * self.entries)


def expected_reply(job: Job, card: ModelCard) -> ExpectedReply:
    """What a worker with this model should reply to a job."""
    match job.work:
        case Encode() as work:
            return _of_encode(job, work, card)
        case Classify() as work:
            return _of_classify(job, work, card)
        case Score() as work:
            lengths, queries = job.tokens.lengths, work.queries
            return _of_scores(lengths[:queries], lengths[queries:], work.layout, explain=work.explain)
        case MaxSim() as work:
            columns = job.tokens.lengths if work.queries is None else work.queries.lengths
            return _of_scores(columns, work.documents.lengths, work.layout, explain=work.explain)


def _of_scores(columns: Sequence[int], documents: Sequence[int], layout: Layout, *, explain: bool) -> ExpectedReply:
    """Scores of queries with so many rows or tokens each, with documents of so many."""
    rows, across = layout.shape(len(columns), len(documents))
    scores = KindBytes(NUMBER_BYTES * rows * across)
    if not explain:
        return ExpectedReply(kinds={ChunkKind.SCORES: scores})
    sides = (np.array(side, dtype=np.int64) for side in (documents, columns))
    winners = ExpectedWinners(**dict(zip(("document_rows", "columns"), sides, strict=True)), layout=layout)
    matches = KindBytes(NUMBER_BYTES * winners.count)
    kinds: dict[int, KindBytes] = {
        ChunkKind.SCORES: scores,
        ChunkKind.WINNERS: matches,
        ChunkKind.SIMILARITIES: matches,
    }
    return ExpectedReply(kinds=kinds, winners=winners)


def _of_classify(job: Job, work: Classify, card: ModelCard) -> ExpectedReply:
    logits, lengths = NUMBER_BYTES * len(card.labels), job.tokens.lengths
    if not work.tokens:
        return ExpectedReply(kinds={ChunkKind.SCORES: KindBytes(logits * len(lengths))})
    counts = np.array(lengths, dtype=np.int64)
    if work.token_id is not None:
        counts = _counts(job, np.frombuffer(job.tokens.ids, dtype="<i4") == work.token_id)
    return ExpectedReply(kinds={ChunkKind.SCORES: KindBytes(row=logits)}, row_counts=(counts,))


def _of_encode(job: Job, work: Encode, card: ModelCard) -> ExpectedReply:
    data_type, sequences, kinds = work.data_type, len(job.tokens), dict[int, KindBytes]()
    dense = tokens = NO_ROWS
    row_counts: tuple[Counts, ...] = ()
    if OutputKind.DENSE in work.outputs:
        rows = sequences if job.ranges is None else len(job.ranges)
        dense = ExpectedRows(dimensions=work.dimensions or card.dense_width, unit=work.normalize)
        kinds[ChunkKind.DENSE] = KindBytes(rows * data_type.row_bytes(dense.dimensions))
        kinds[ChunkKind.DENSE_SCALES] = KindBytes(rows * data_type.scale_bytes)
    if OutputKind.MULTI_VECTOR in work.outputs:
        tokens = ExpectedRows(dimensions=work.dimensions or card.multi_vector_dimensions, unit=work.normalize_tokens)
        row_counts = _row_counts(job, work, card)
        kinds[ChunkKind.MULTI_VECTOR] = KindBytes(row=data_type.row_bytes(tokens.dimensions))
        kinds[ChunkKind.MULTI_VECTOR_SCALES] = KindBytes(row=data_type.scale_bytes)
        kinds[ChunkKind.TOKEN_IDS] = KindBytes(row=NUMBER_BYTES * work.token_ids)
    sparse = sequences if OutputKind.SPARSE in work.outputs else 0
    if sparse:
        pair = KindBytes(entry=NUMBER_BYTES)
        kinds |= {ChunkKind.SPARSE_INDICES: pair, ChunkKind.SPARSE_VALUES: pair}
    vocabulary = card.vocabulary_size
    return ExpectedReply(
        kinds={kind: size for kind, size in kinds.items() if size != KindBytes()},
        row_counts=row_counts,
        dense=dense,
        tokens=tokens,
        data_type=data_type,
        sparse=sparse,
        entries=min(work.sparse_top_k or vocabulary, vocabulary),
        vocabulary=vocabulary,
    )


def _row_counts(job: Job, work: Encode, card: ModelCard) -> tuple[Counts, ...]:
    """The numbers of token rows [S]: one for each token that is not in the model's skiplist.

    The card does not tell whether the first token of a text has a row, which in BGE-M3 it has not; only models with a
    projection of their own leave it out.
    """
    late, lengths = card.late_interaction, np.array(job.tokens.lengths, dtype=np.int64)
    if late is None or not late.skiplist or not late.skips(work.input_type):
        return (lengths, lengths - 1) if card.multi_vector_head else (lengths,)
    counted = np.isin(np.frombuffer(job.tokens.ids, dtype="<i4"), late.skiplist, invert=True)
    counts = _counts(job, counted)
    return (counts, counts - counted[list(job.tokens.offsets[:-1])]) if card.multi_vector_head else (counts,)


def _counts(job: Job, chosen: NDArray[np.bool_]) -> Counts:
    """How many tokens of each sequence [S] are `chosen` [T]."""
    counts: Counts = np.add.reduceat(chosen, job.tokens.offsets[:-1], dtype=np.int64)
    return counts
