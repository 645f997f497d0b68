"""The one place that checks what a frontend asks for before anything is allocated for it. Knows no torch, no transport.

`check_message` sees the bytes of a large message before they are parsed; `check_job` sees each job before the engine
opens it. What a model cannot do is for the engine to say: it needs the model for that, and allocates nothing before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selvage.v1 import vectors_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.caller import LONGEST_ID, LONGEST_KEY
from shared.card import ModelCard
from shared.errors import InvalidInput, LimitExceeded
from shared.jobs import MESSAGE_SEQUENCES, RANGE_TIMES, Classify, Encode, Job, MaxSim, Score, TokenRanges
from shared.link_codec import MESSAGE_JOBS
from shared.value_codec import MESSAGE_BYTES, MESSAGE_ENTRIES, wire_fields
from shared.vectors import MOST_DIMENSIONS, MOST_ELEMENTS, MOST_SIMILARITIES, Layout, MultiVectors, OutputKind

TABLE_BYTES = 16 * MESSAGE_SEQUENCES
"""Most bytes of a message beside token ids and vectors. Lengths take eight times their bytes once they are parsed."""
NUMBER_BYTES, MATCH_BYTES = 4, 8
"""Bytes of a score or a logit, and of a winner with its similarity."""
KEY_LETTERS = 2 * LONGEST_KEY
"""Most letters of a fairness key: a frontend cuts what callers send to half of that, or takes their address."""

_TOKEN_IDS, _JOBS = pb.AttachRequest.TOKEN_IDS_FIELD_NUMBER, pb.AttachRequest.JOBS_FIELD_NUMBER
_MAX_SIM = pb.Job.MAX_SIM_FIELD_NUMBER
_SIDES = (pb.MaxSimOptions.QUERIES_FIELD_NUMBER, pb.MaxSimOptions.DOCUMENTS_FIELD_NUMBER)
_NUMBERS = (vectors_pb2.MultiVectors.DATA_FIELD_NUMBER, vectors_pb2.MultiVectors.SCALES_FIELD_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """The most that a MaxSim may ask for: products of two rows, and rows x dimensions of either side."""

    similarities: int = MOST_SIMILARITIES
    vector_elements: int = MOST_ELEMENTS


def check_message(raw: bytes) -> None:
    """Raises LimitExceeded for a message with too many jobs, or with too much that grows when it is parsed.

    Bytes that are no message are left for the parser to refuse.
    """
    jobs, entries, table = 0, 0, len(raw)
    for field, start, end in wire_fields(raw, 0, len(raw)):
        entries += 1
        if field == _TOKEN_IDS:
            table -= end - start
        elif field == _JOBS:
            jobs += 1
            vectors, inside = _vector_bytes(raw, start, end)
            table, entries = table - vectors, entries + inside
        if entries > MESSAGE_ENTRIES:
            raise LimitExceeded(f"a message has more than {MESSAGE_ENTRIES} entries", field="jobs")
        if jobs > MESSAGE_JOBS:
            raise LimitExceeded(f"a message has more than {MESSAGE_JOBS} jobs", field="jobs")
    if table > TABLE_BYTES:
        why = f"a message has {table} bytes beside token ids and vectors, the limit is {TABLE_BYTES}"
        raise LimitExceeded(why, field="jobs")


def _vector_bytes(raw: bytes, start: int, end: int) -> tuple[int, int]:
    """Counts the bytes of the vectors that a job brings, and entries of the job: one more than the most if there are
    too many."""
    entries = 0
    waiting: list[tuple[int, int, tuple[int, ...]]] = [(start, end, (_MAX_SIM,))]
    for below in (_SIDES, _NUMBERS, ()):
        nested = list[tuple[int, int, tuple[int, ...]]]()
        for first, last, wanted in waiting:
            for field, begin, stop in wire_fields(raw, first, last):
                entries += 1
                if entries > MESSAGE_ENTRIES:
                    return 0, entries
                if field in wanted:
                    nested.append((begin, stop, below))
        waiting = nested
    return sum(stop - begin for begin, stop, _ in waiting), entries


class JobCheck:
    """Checks the jobs that frontends send to one model."""

    def __init__(self, card: ModelCard, limits: JobLimits, step_tokens: int) -> None:
        """`step_tokens`: most tokens of a step."""
        self._card, self._limits, self._step_tokens = card, limits, step_tokens

    def __call__(self, job: Job) -> None:
        """Raises InvalidInput for names that are too long, LimitExceeded for a result that is too large."""
        for field, text, most in (("key", job.key, KEY_LETTERS), ("request_id", job.request_id, LONGEST_ID)):
            if len(text) > most:
                raise InvalidInput(f"{field} has {len(text)} letters, the limit is {most}", field=field)
        if job.ranges is not None:
            _check_ranges(job.ranges, job.tokens.lengths, self._step_tokens)
        match job.work:
            case Encode() as work:
                self._check_vectors(job, work)
            case Classify() as work:
                rows = _logit_rows(job, work)
                _check_bytes("logits", rows * len(self._card.labels) * NUMBER_BYTES)
            case Score() as work:
                documents = len(job.tokens) - work.queries
                _check_scores(work.layout, work.queries, documents)
                if work.explain and job.tokens.lengths:
                    _check_bytes("winners", documents * job.tokens.lengths[0] * MATCH_BYTES)
            case MaxSim() as work:
                self._check_max_sim(job, work)

    def _check_vectors(self, job: Job, work: Encode) -> None:
        kind, card, sequences = work.data_type, self._card, len(job.tokens)
        if OutputKind.DENSE in work.outputs:
            width = max(0, work.dimensions) or card.dense_width
            rows = sequences if job.ranges is None else len(job.ranges)
            _check_bytes("vectors", rows * (kind.row_bytes(width) + kind.scale_bytes))
        if OutputKind.MULTI_VECTOR in work.outputs:
            width = max(0, work.dimensions) or card.multi_vector_dimensions
            rows = sum(map(work.pooling.rows_left, job.tokens.lengths)) if work.pooling else job.tokens.total
            _check_bytes("token rows", rows * (kind.row_bytes(width) + kind.scale_bytes))

    def _check_max_sim(self, job: Job, work: MaxSim) -> None:
        rows = job.tokens.lengths if work.queries is None else work.queries.lengths
        documents = work.documents.lengths
        for field, vectors in (("queries", work.queries), ("documents", work.documents)):
            if vectors is not None:
                self._check_side(field, vectors)
        _check_scores(work.layout, len(rows), len(documents))
        pairs = work.layout is Layout.PAIRS
        if pairs and len(rows) != len(documents):
            raise InvalidInput("pairs need as many queries as documents", field="documents")
        products = sum(map(int.__mul__, rows, documents)) if pairs else sum(rows) * sum(documents)
        if products > self._limits.similarities:
            most = self._limits.similarities
            raise LimitExceeded(f"{products} products of rows are asked for, the limit is {most}")
        if work.explain:
            _check_bytes("winners", sum(rows) * (1 if pairs else len(documents)) * MATCH_BYTES)

    def _check_side(self, field: str, vectors: MultiVectors) -> None:
        if len(vectors.lengths) > MESSAGE_SEQUENCES:
            raise LimitExceeded(f"{field} has more than {MESSAGE_SEQUENCES} texts", field=field)
        if vectors.dimensions > MOST_DIMENSIONS:
            why = f"{field} has rows of {vectors.dimensions} dimensions, the limit is {MOST_DIMENSIONS}"
            raise LimitExceeded(why, field=f"{field}.dimensions")
        elements, most = vectors.rows * vectors.dimensions, self._limits.vector_elements
        if elements > most:
            why = f"{field} holds {elements} numbers, the limit is {most}"
            raise LimitExceeded(why, field=field)


def _check_ranges(ranges: TokenRanges, lengths: Sequence[int], step_tokens: int) -> None:
    """Raises LimitExceeded where a sequence has too many ranges, or these have its tokens too often: all of them are
    pooled at once, in the step in which the sequence ends."""
    for count, length in zip(ranges.counts, lengths, strict=True):
        if count > max(step_tokens, length):
            why = f"a sequence of {length} tokens has {count} spans, the limit is {max(step_tokens, length)}"
            raise LimitExceeded(f"{why}, the tokens of a step or its own", field="jobs")
    sizes = np.subtract(ranges.stops, ranges.starts)
    ends = np.cumsum(sizes)[np.cumsum(ranges.counts) - 1]  # a sequence has one range at least
    for total, length in zip(np.diff(ends, prepend=0).tolist(), lengths, strict=True):
        if total > RANGE_TIMES * length:
            why = (
                f"the token ranges of a sequence have {total} tokens together, the limit is {RANGE_TIMES} times its own"
            )
            raise LimitExceeded(f"{why} {length}", field="jobs")


def _logit_rows(job: Job, work: Classify) -> int:
    """Counts the rows of logits: one a sequence, one a token, or one a token with the id that is asked for."""
    if not work.tokens:
        return len(job.tokens)
    if work.token_id is None:
        return job.tokens.total
    return int(np.count_nonzero(np.frombuffer(job.tokens.ids, dtype="<i4") == work.token_id))


def _check_scores(layout: Layout, queries: int, documents: int) -> None:
    rows, columns = layout.shape(queries, documents)
    _check_bytes("scores", rows * columns * NUMBER_BYTES)


def _check_bytes(what: str, size: int) -> None:
    """Raises LimitExceeded where a result would have too many bytes: no frontend could put it into a reply."""
    if size > MESSAGE_BYTES:
        raise LimitExceeded(f"the {what} of a job would have {size} bytes, the limit is {MESSAGE_BYTES}", field="jobs")
