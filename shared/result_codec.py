"""Job results <-> Execute replies in pieces, both directions side by side. Nothing here knows gRPC."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec import duration_from_pb, duration_to_pb, error_from_pb
from shared.errors import Internal
from shared.jobs import JobResult, Rows, SparseRows

CHUNK_BYTES = 4 * 1024 * 1024 - 1024
"""Payload of one message: big ones are (de)serialised on the event loop, so none is over 4 MiB."""


def result_to_pb(job_id: int, result: JobResult) -> Iterator[pb.ExecuteResponse]:
    """The messages of a finished job, none larger than 4 MiB."""
    dense, sparse, tokens = result.dense, result.sparse, result.tokens
    for kind, data in (
        (pb.CHUNK_KIND_DENSE, dense.data if dense else b""),
        (pb.CHUNK_KIND_DENSE_SCALES, dense.scales if dense else b""),
        (pb.CHUNK_KIND_MULTI_VECTOR, tokens.data if tokens else b""),
        (pb.CHUNK_KIND_MULTI_VECTOR_SCALES, tokens.scales if tokens else b""),
        (pb.CHUNK_KIND_TOKEN_IDS, result.token_ids),
        (pb.CHUNK_KIND_SPARSE_INDICES, sparse.indices if sparse else b""),
        (pb.CHUNK_KIND_SPARSE_VALUES, sparse.values if sparse else b""),
        (pb.CHUNK_KIND_SCORES, result.scores),
        (pb.CHUNK_KIND_WINNERS, result.winners),
        (pb.CHUNK_KIND_SIMILARITIES, result.similarities),
    ):
        whole = memoryview(data)
        for start in range(0, len(whole), CHUNK_BYTES):
            message = pb.ExecuteResponse(job_id=job_id)
            message.chunk.kind = kind
            # Our one copy of a row: protobuf takes bytes, no views. A message made apart would be copied whole again.
            message.chunk.data = bytes(whole[start : start + CHUNK_BYTES])
            yield message
    end = pb.JobEnd(
        dense_dimensions=dense.dimensions if dense else 0,
        token_dimensions=tokens.dimensions if tokens else 0,
        row_lengths=result.row_lengths,
        sparse_lengths=sparse.lengths if sparse else (),
        queue=duration_to_pb(result.queue),
        compute=duration_to_pb(result.compute),
    )
    yield pb.ExecuteResponse(job_id=job_id, end=end)


@dataclass(slots=True)
class ResultAssembly:
    """The parts of one job's answer as they come; the other direction of `result_to_pb`. `size` is in bytes."""

    chunks: dict[int, list[bytes]] = field(default_factory=dict)
    end: pb.JobEnd | None = None
    size: int = 0

    def add(self, message: pb.ExecuteResponse) -> None:
        """Takes a part. Raises the job's own error."""
        if message.WhichOneof("part") == "chunk":
            self.chunks.setdefault(message.chunk.kind, []).append(message.chunk.data)
            self.size += len(message.chunk.data)
        elif message.end.HasField("error"):
            raise error_from_pb(message.end.error)
        else:
            self.end = message.end

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
        parts = self.chunks.get(kind, [])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _rows(self, dimensions: int, data: int, scales: int) -> Rows | None:
        if not dimensions:
            return None
        return Rows(dimensions=dimensions, data=self._bytes(data), scales=self._bytes(scales))

    def _sparse(self, lengths: tuple[int, ...]) -> SparseRows | None:
        if not lengths:
            return None
        indices, values = (self._bytes(kind) for kind in (pb.CHUNK_KIND_SPARSE_INDICES, pb.CHUNK_KIND_SPARSE_VALUES))
        return SparseRows(lengths=lengths, indices=indices, values=values)
