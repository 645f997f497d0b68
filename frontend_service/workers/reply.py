"""What a worker should reply to a job, in bytes of each kind, and the check that it did. numpy; no transport.

A worker is ours, so its numbers are not proved. Bytes are counted: `ReplyCheck.take` sees every piece as it comes, so
that no mistake makes the frontend hold more than was asked for; `check` sees the whole result, in a thread where it is
large, and refuses NaN and infinity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shared.card import ModelCard
from shared.errors import ResultTooLarge
from shared.jobs import ChunkKind, Classify, Encode, Job, JobResult, MaxSim, PackedBytes, Score
from shared.vectors import DataType, Layout, OutputKind
from shared.wire import MESSAGE_BYTES

NUMBER_BYTES = 4
"""Bytes of a score, an id, a weight or a winner on the link."""
INFINITY = {DataType.FLOAT16: 0x7C00, DataType.BFLOAT16: 0x7F80}
"""The 16 bits of infinity in each type, without the sign; larger ones are NaN."""


class WrongReply(Exception):
    """Something that a worker sent does not fit what it was asked for.

    `reason`: one of a few texts, by which the log knows a repetition. The message has the numbers too.
    """

    def __init__(self, reason: str, numbers: str = "") -> None:
        super().__init__(f"{reason} ({numbers})" if numbers else reason)
        self.reason = reason


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
class ExpectedReply:
    """What the reply to one job must be.

    `kinds`: the bytes of each kind of chunk. `sequences`: those of the job. `rows`, `entries`: most token rows, and
    most entries of sparse vectors, of all sequences; 0: none are told. `dense`, `tokens`: the dimensions of dense rows
    and of token rows, 0 for none. `unit`: whether all rows are of unit length.
    """

    kinds: Mapping[int, KindBytes]
    sequences: int = 0
    rows: int = 0
    entries: int = 0
    dense: int = 0
    tokens: int = 0
    data_type: DataType = DataType.FLOAT32
    unit: bool = False


def expected_reply(job: Job, card: ModelCard) -> ExpectedReply:
    """What a worker with this model should reply to a job."""
    match job.work:
        case Encode() as work:
            return _of_encode(job, work, card)
        case Classify() as work:
            return _of_classify(job, work, card)
        case Score() as work:
            lengths, queries = job.tokens.lengths, work.queries
            return _of_scores(lengths[:queries], len(lengths) - queries, work.layout, explain=work.explain)
        case MaxSim() as work:
            columns = job.tokens.lengths if work.queries is None else work.queries.lengths
            return _of_scores(columns, len(work.documents.lengths), work.layout, explain=work.explain)


def _of_scores(columns: Sequence[int], documents: int, layout: Layout, *, explain: bool) -> ExpectedReply:
    """Scores of queries with so many rows or tokens each, with so many documents."""
    rows, across = layout.shape(len(columns), documents)
    scores = KindBytes(NUMBER_BYTES * rows * across)
    if not explain:
        return ExpectedReply(kinds={ChunkKind.SCORES: scores})
    matches = KindBytes(NUMBER_BYTES * sum(columns) * across)
    return ExpectedReply(kinds={ChunkKind.SCORES: scores, ChunkKind.WINNERS: matches, ChunkKind.SIMILARITIES: matches})


def _of_classify(job: Job, work: Classify, card: ModelCard) -> ExpectedReply:
    logits, sequences = NUMBER_BYTES * len(card.labels), len(job.tokens)
    if not work.tokens:
        return ExpectedReply(kinds={ChunkKind.SCORES: KindBytes(logits * sequences)})
    return ExpectedReply(kinds={ChunkKind.SCORES: KindBytes(row=logits)}, sequences=sequences, rows=job.tokens.total)


def _of_encode(job: Job, work: Encode, card: ModelCard) -> ExpectedReply:
    data_type, sequences, kinds = work.data_type, len(job.tokens), dict[int, KindBytes]()
    dense = tokens = entries = 0
    if OutputKind.DENSE in work.outputs:
        rows, dense = sequences if job.ranges is None else len(job.ranges), work.dimensions or card.dense_width
        kinds[ChunkKind.DENSE] = KindBytes(rows * data_type.row_bytes(dense))
        if data_type.scale_bytes:
            kinds[ChunkKind.DENSE_SCALES] = KindBytes(rows * data_type.scale_bytes)
    if OutputKind.MULTI_VECTOR in work.outputs:
        tokens = work.dimensions or card.multi_vector_dimensions
        kinds[ChunkKind.MULTI_VECTOR] = KindBytes(row=data_type.row_bytes(tokens))
        if data_type.scale_bytes:
            kinds[ChunkKind.MULTI_VECTOR_SCALES] = KindBytes(row=data_type.scale_bytes)
        if work.token_ids:
            kinds[ChunkKind.TOKEN_IDS] = KindBytes(row=NUMBER_BYTES)
    if OutputKind.SPARSE in work.outputs:
        kinds[ChunkKind.SPARSE_INDICES] = kinds[ChunkKind.SPARSE_VALUES] = KindBytes(entry=NUMBER_BYTES)
        entries = sequences * min(work.sparse_top_k or card.vocabulary_size, card.vocabulary_size)
    return ExpectedReply(
        kinds=kinds,
        sequences=sequences,
        rows=job.tokens.total if tokens else 0,
        entries=entries,
        dense=dense,
        tokens=tokens,
        data_type=data_type,
        unit=(work.normalize or not dense) and (work.normalize_tokens or not tokens),
    )


class ReplyCheck:
    """Checks the reply to one job as it comes."""

    def __init__(self, expected: ExpectedReply) -> None:
        self.expected = expected
        self._taken: dict[int, int] = {}  # bytes of each kind

    def take(self, kind: int, data: PackedBytes) -> None:
        """Sees a piece before it is kept. Raises WrongReply; ResultTooLarge for what fits into no reply to a caller."""
        expected = self.expected
        wanted = expected.kinds.get(kind)
        if wanted is None:
            raise WrongReply("it sent a kind of numbers that was not asked for", f"kind {kind}")
        size = self._taken[kind] = self._taken.get(kind, 0) + len(data)
        most = wanted.size(expected.rows, expected.entries)
        if size > most:
            raise WrongReply("it sent more than was asked for", f"{size} bytes of kind {kind}, not {most}")
        if size > MESSAGE_BYTES and wanted.entry:
            raise ResultTooLarge(f"the sparse vectors have more than {MESSAGE_BYTES} bytes; set sparse_top_k")

    def check(self, result: JobResult) -> JobResult:
        """Returns the result if it has what was asked for. Raises WrongReply."""
        expected = self.expected
        sparse = result.sparse.lengths if result.sparse else ()
        self._check_counts("numbers of token rows", result.row_lengths, expected.rows)
        self._check_counts("sparse vectors", sparse, expected.entries)
        for vectors, wanted in ((result.dense, expected.dense), (result.tokens, expected.tokens)):
            dimensions = 0 if vectors is None else vectors.dimensions
            if dimensions != wanted:
                raise WrongReply("rows have other dimensions", f"{dimensions}, not {wanted}")
        rows, entries = sum(result.row_lengths), sum(sparse)
        for kind, size in expected.kinds.items():
            taken, right = self._taken.get(kind, 0), size.size(rows, entries)
            if taken != right:
                less = "less" if taken < right else "more"
                raise WrongReply(f"it sent {less} than was asked for", f"{taken} bytes of kind {kind}, not {right}")
        self._check_numbers(result)
        return result

    def _check_counts(self, what: str, lengths: Sequence[int], most: int) -> None:
        """Raises WrongReply where there is not a length for each sequence, or one where none was asked for."""
        wanted = self.expected.sequences if most else 0
        if len(lengths) != wanted:
            raise WrongReply(f"it told of other {what} than were asked for", f"{len(lengths)}, not {wanted}")

    def _check_numbers(self, result: JobResult) -> None:
        for vectors in (result.dense, result.tokens):
            if vectors is not None:
                self._check_rows(vectors.data)
                check_finite(vectors.scales)
        for numbers in (result.scores, result.similarities, result.sparse.values if result.sparse else b""):
            check_finite(numbers)

    def _check_rows(self, data: PackedBytes) -> None:
        """Raises WrongReply for NaN and infinity, which half precision has for large numbers of rows of any length."""
        data_type = self.expected.data_type
        if data_type is DataType.FLOAT32:
            check_finite(data)
        elif data_type in INFINITY:
            largest = (np.frombuffer(data, dtype="<u2") & 0x7FFF).max(initial=0)
            if largest >= INFINITY[data_type] + (not self.expected.unit):
                raise WrongReply("it sent numbers that are not finite")


def check_finite(data: PackedBytes) -> None:
    """Raises WrongReply where float32 numbers are NaN or infinite."""
    if len(data) and not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise WrongReply("it sent numbers that are not finite")
