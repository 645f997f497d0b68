"""The one place that checks what a worker replies against what its job asked for. numpy; no transport.

`take` sees every piece as it comes, so that no worker makes the frontend hold more than was asked for; `check` sees the
whole result, in a thread where it is large. A wrong number among right ones is nothing that a frontend could tell.
"""

import numpy as np

from frontend_service.workers.expected_reply import ExpectedReply, ExpectedRows
from shared.codec.wire import MESSAGE_BYTES
from shared.errors import (
    DeadlineExceeded,
    GivenBack,
    InputTooLarge,
    Internal,
    InvalidInput,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    WorkerUnavailable,
)
from shared.jobs import JobResult, PackedBytes, SparseRows
from shared.vectors import DataType

LONGEST_SECONDS = 1e6
"""Most seconds that a job may be said to have taken: eleven days."""
ERRORS = (InvalidInput, Overloaded, InputTooLarge, WorkerUnavailable, DeadlineExceeded, Internal)
"""Errors that a worker may end a job with. Others, such as that of an unknown key, are not its to tell."""
INFINITY = {DataType.FLOAT16: 0x7C00, DataType.BFLOAT16: 0x7F80}
"""The 16 bits of infinity in each type, without the sign; larger ones are NaN."""


class WrongReply(Exception):
    """Something that a worker sent does not fit what it was asked for.

    `reason`: one of a few texts, by which the log knows a repetition. The message has the numbers too.
    """

    def __init__(self, reason: str, numbers: str = "") -> None:
        super().__init__(f"{reason} ({numbers})" if numbers else reason)
        self.reason = reason


class ReplyCheck:
    """Checks the reply to one job as it comes."""

    def __init__(self, expected: ExpectedReply) -> None:
        self.expected = expected
        self._taken: dict[int, int] = {}  # bytes of each kind

    def take(self, kind: int, data: PackedBytes) -> None:
        """Sees a piece before it is kept. Raises WrongReply; ResultTooLarge for what fits into no reply to a caller."""
        size = self._taken[kind] = self._taken.get(kind, 0) + len(data)
        most = self.expected.most(kind)
        if most is None:
            raise WrongReply("it sent a kind of numbers that was not asked for", f"kind {kind}")
        if size > most:
            raise WrongReply("it sent more than was asked for", f"{size} bytes of kind {kind}, not {most}")
        if size > MESSAGE_BYTES and self.expected.kinds[kind].entry:
            raise ResultTooLarge(f"the sparse vectors have more than {MESSAGE_BYTES} bytes; set sparse_top_k")

    def error(self, error: SelvageError) -> Exception:
        """The error that the worker ended the job with, or a WrongReply for one that it cannot have."""
        if not isinstance(error, ERRORS):
            return WrongReply("it ended a job with an error that no worker has", error.reason)
        if isinstance(error, GivenBack) and self._taken:
            return WrongReply("it gave a job back after it had sent a part of its result")
        return error

    def check(self, result: JobResult) -> JobResult:
        """Returns the result if it is what was asked for. Raises WrongReply."""
        if not all(0 <= seconds <= LONGEST_SECONDS for seconds in (result.queue, result.compute)):
            raise WrongReply("a job took a time that cannot be", f"{result.queue:g} s and {result.compute:g} s")
        expected = self.expected
        for vectors, wanted in ((result.dense, expected.dense), (result.tokens, expected.tokens)):
            dimensions = 0 if vectors is None else vectors.dimensions
            if dimensions != wanted.dimensions:
                raise WrongReply("rows have other dimensions", f"{dimensions}, not {wanted.dimensions}")
        rows, entries = self._row_count(result.row_lengths), self._entry_count(result.sparse)
        for kind, size in expected.kinds.items():
            taken, wanted_size = self._taken.get(kind, 0), size.size(rows, entries)
            if taken != wanted_size:
                less = "less" if taken < wanted_size else "more"
                raise WrongReply(
                    f"it sent {less} than was asked for", f"{taken} bytes of kind {kind}, not {wanted_size}"
                )
        self._check_numbers(result)
        return result

    def _row_count(self, lengths: tuple[int, ...]) -> int:
        """The number of all token rows."""
        possible = self.expected.row_counts
        if not possible and lengths:
            raise WrongReply("it told of token rows that were not asked for", f"{len(lengths)} sequences")
        if possible and not any(np.array_equal(counts, lengths) for counts in possible):
            sequences, wanted = len(possible[0]), " or ".join(str(counts.sum()) for counts in possible)
            numbers = f"{len(lengths)} sequences with {sum(lengths)} rows, not {sequences} with {wanted}"
            raise WrongReply("sequences have other numbers of rows than they have tokens", numbers)
        return sum(lengths)

    def _entry_count(self, sparse: SparseRows | None) -> int:
        """The number of the entries of all sparse vectors."""
        lengths, most = sparse.lengths if sparse else (), self.expected.entries
        if len(lengths) != self.expected.sparse:
            raise WrongReply("it sent another number of sparse vectors", f"{len(lengths)}, not {self.expected.sparse}")
        if lengths and not 0 <= min(lengths) <= max(lengths) <= most:
            raise WrongReply("a sparse vector has an impossible length", f"{min(lengths)} to {max(lengths)}")
        return sum(lengths)

    def _check_numbers(self, result: JobResult) -> None:
        expected = self.expected
        for vectors, wanted in ((result.dense, expected.dense), (result.tokens, expected.tokens)):
            if vectors is not None:
                self._check_rows(vectors.data, wanted)
                check_finite(vectors.scales)
        check_finite(result.scores)
        check_finite(result.similarities)
        self._check_ids(result.token_ids)
        if result.sparse is not None:
            self._check_sparse(result.sparse)
        if expected.winners is not None:
            winners = np.frombuffer(result.winners, dtype="<i4")
            if (winners < -1).any() or (winners >= expected.winners.bounds).any():
                raise WrongReply("a winner is no row of its document")

    def _check_rows(self, data: PackedBytes, wanted: ExpectedRows) -> None:
        """Raises WrongReply for NaN and infinity, which half precision has for large numbers of rows of any length."""
        infinity = INFINITY.get(self.expected.data_type)
        if self.expected.data_type is DataType.FLOAT32:
            check_finite(data)
        elif infinity is not None:
            largest = (np.frombuffer(data, dtype="<u2") & 0x7FFF).max(initial=0)
            if largest >= infinity + (not wanted.unit):
                raise WrongReply("it sent numbers that are not finite")

    def _check_sparse(self, sparse: SparseRows) -> None:
        self._check_ids(sparse.indices)
        ids, values = np.frombuffer(sparse.indices, dtype="<i4"), np.frombuffer(sparse.values, dtype="<f4")
        texts = np.repeat(np.arange(len(sparse.lengths)), sparse.lengths)
        if not ((np.diff(ids) > 0) | (np.diff(texts) > 0)).all():
            raise WrongReply("the ids of a sparse vector do not ascend")
        if not ((values > 0) & (values < np.inf)).all():
            raise WrongReply("a weight of a sparse vector is no number above zero")

    def _check_ids(self, data: PackedBytes) -> None:
        ids = np.frombuffer(data, dtype="<i4")
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.expected.vocabulary:
            raise WrongReply("an id is not in the vocabulary", f"{ids.min()} to {ids.max()}")


def check_finite(data: PackedBytes) -> None:
    """Raises WrongReply where float32 numbers are NaN or infinite."""
    if len(data) and not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise WrongReply("it sent numbers that are not finite")
