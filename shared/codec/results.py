"""Conversion between outcomes and parts of messages, both directions side by side. Knows no gRPC."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.fields import duration_from_pb, duration_to_pb, error_from_pb, error_to_pb
from shared.codec.leading_piece import LeadingPiece
from shared.codec.wire import varint
from shared.errors import Internal, SelvageError
from shared.jobs import JobResult, PackedBytes, Rows, SparseRows

FRAME_BYTES, CHUNK_BYTES = 96, 16
"""Most bytes that a message holds beside an outcome's numbers and texts: for the outcome, and for each chunk of it."""


class UnsentOutcome:
    """The outcome of a job on its way into messages.

    `left`: bytes of vectors and scores that no message has taken yet. `frame`: most bytes of everything else, such as
    lengths, or the words of an error.
    """

    def __init__(self, job_id: int, outcome: JobResult | SelvageError) -> None:
        self.job_id, self._outcome = job_id, outcome
        chunks = [] if isinstance(outcome, SelvageError) else [pair for pair in _chunks(outcome) if len(pair[1])]
        self.left = sum(len(data) for _, data in chunks)
        self.frame = FRAME_BYTES + CHUNK_BYTES * len(chunks) + _end_bytes(outcome)
        self._rest = iter([(kind, memoryview(data)) for kind, data in chunks])
        self._open: tuple[int, memoryview] | None = next(self._rest, None)

    @property
    def size(self) -> int:
        """Most bytes that the rest of the outcome takes in a message."""
        return self.left + self.frame

    def add_part(self, message: pb.AttachResponse, room: int) -> None:
        """Adds a part with at most `room` bytes of vectors and scores; it has the end once nothing is left."""
        part = message.answers.add(job_id=self.job_id)
        while self._open is not None and room > 0:
            piece = self.take_piece(room)
            part.chunks.add(kind=piece.kind, data=bytes(piece.data))  # protobuf takes bytes, no views
            room -= len(piece.data)
        if self._open is None:
            _end(part.end, self._outcome)

    def take_piece(self, room: int) -> LeadingPiece:
        """Takes at most `room` of the bytes that are left, uncopied, for the head of a message, without the end."""
        assert self._open is not None
        kind, data = self._open
        piece = data[:room]
        self.left -= len(piece)
        self._open = (kind, data[len(piece) :]) if len(piece) < len(data) else next(self._rest, None)
        return LeadingPiece(job_id=self.job_id, kind=kind, data=piece)


def _chunks(result: JobResult) -> Iterator[tuple[int, PackedBytes]]:
    dense, sparse, tokens = result.dense, result.sparse, result.tokens
    if dense is not None:
        yield pb.CHUNK_KIND_DENSE, dense.data
        yield pb.CHUNK_KIND_DENSE_SCALES, dense.scales
    if tokens is not None:
        yield pb.CHUNK_KIND_MULTI_VECTOR, tokens.data
        yield pb.CHUNK_KIND_MULTI_VECTOR_SCALES, tokens.scales
    if sparse is not None:
        yield pb.CHUNK_KIND_SPARSE_INDICES, sparse.indices
        yield pb.CHUNK_KIND_SPARSE_VALUES, sparse.values
    yield pb.CHUNK_KIND_TOKEN_IDS, result.token_ids
    yield pb.CHUNK_KIND_SCORES, result.scores
    yield pb.CHUNK_KIND_WINNERS, result.winners
    yield pb.CHUNK_KIND_SIMILARITIES, result.similarities


def _end_bytes(outcome: JobResult | SelvageError) -> int:
    """Most bytes of the lengths, or of an error's words, in the end of an outcome."""
    if isinstance(outcome, SelvageError):
        return sum(len(word.encode()) for word in (outcome.reason, outcome.message, outcome.field))
    sparse_lengths = outcome.sparse.lengths if outcome.sparse else ()
    lists = (outcome.row_lengths, sparse_lengths)
    return sum(len(lengths) * len(varint(max(lengths))) for lengths in lists if lengths)


def _end(end: pb.JobEnd, outcome: JobResult | SelvageError) -> None:
    if isinstance(outcome, SelvageError):
        end.error.CopyFrom(error_to_pb(outcome))
        return
    end.dense_dimensions = outcome.dense.dimensions if outcome.dense else 0
    end.token_dimensions = outcome.tokens.dimensions if outcome.tokens else 0
    end.row_lengths.extend(outcome.row_lengths)
    end.sparse_lengths.extend(outcome.sparse.lengths if outcome.sparse else ())
    end.queue.CopyFrom(duration_to_pb(outcome.queue))
    end.compute.CopyFrom(duration_to_pb(outcome.compute))


@dataclass(slots=True)
class ResultAssembly:
    """The parts of a job's outcome as they come: the other direction of `UnsentOutcome`. `size` is in bytes."""

    chunks: dict[int, list[PackedBytes]] = field(default_factory=dict)
    end: pb.JobEnd | None = None
    size: int = 0

    def add(self, part: pb.AnswerPart) -> bool:
        """Takes a part. Returns whether it was the last one. Raises the job's own error."""
        for chunk in part.chunks:
            self.append(chunk.kind, chunk.data)
        return self.end_with(part)

    def end_with(self, part: pb.AnswerPart) -> bool:
        """Takes the end of a part whose chunks have been taken. See `add`."""
        if not part.HasField("end"):
            return False
        if part.end.HasField("error"):
            raise error_from_pb(part.end.error)
        self.end = part.end
        return True

    def append(self, kind: int, data: PackedBytes) -> None:
        """Takes a piece of the bytes of a kind."""
        self.chunks.setdefault(kind, []).append(data)
        self.size += len(data)

    def result(self) -> JobResult:
        """All parts put together. Raises Internal where the end is missing."""
        end = self.end
        if end is None:
            raise Internal("the worker ended without an answer")
        return JobResult(
            dense=self._rows(end.dense_dimensions, pb.CHUNK_KIND_DENSE, pb.CHUNK_KIND_DENSE_SCALES),
            tokens=self._rows(end.token_dimensions, pb.CHUNK_KIND_MULTI_VECTOR, pb.CHUNK_KIND_MULTI_VECTOR_SCALES),
            sparse=self._sparse(tuple(end.sparse_lengths)),
            row_lengths=tuple(end.row_lengths),
            token_ids=self._bytes(pb.CHUNK_KIND_TOKEN_IDS),
            scores=self._bytes(pb.CHUNK_KIND_SCORES),
            winners=self._bytes(pb.CHUNK_KIND_WINNERS),
            similarities=self._bytes(pb.CHUNK_KIND_SIMILARITIES),
            queue=duration_from_pb(end.queue),
            compute=duration_from_pb(end.compute),
        )

    def _bytes(self, kind: int) -> bytes:
        return b"".join(self.chunks.get(kind, ()))  # of one part that is bytes: the part

    def _rows(self, dimensions: int, data: int, scales: int) -> Rows | None:
        if not dimensions:
            return None
        return Rows(dimensions=dimensions, data=self._bytes(data), scales=self._bytes(scales))

    def _sparse(self, lengths: tuple[int, ...]) -> SparseRows | None:
        if not lengths:
            return None
        indices, values = (self._bytes(kind) for kind in (pb.CHUNK_KIND_SPARSE_INDICES, pb.CHUNK_KIND_SPARSE_VALUES))
        return SparseRows(lengths=lengths, indices=indices, values=values)
