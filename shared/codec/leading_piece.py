"""A piece of a large answer, written at the head of a message and read from there; both directions side by side.

protobuf copies bytes three times to write them and twice to read them. A message is fields end to end, so a piece may
stand before what protobuf writes: it is copied once, as the message is joined, and read where it lies. What protobuf
makes of the whole message is the same. Format: protobuf.dev/programming-guides/encoding. Nothing here knows gRPC.
"""

from dataclasses import dataclass

from selvage.worker.v1 import worker_pb2 as pb
from shared.codec.wire import BYTES, VARINT, read_varint, varint
from shared.jobs import PackedBytes

ANSWER = varint(pb.AttachResponse.ANSWERS_FIELD_NUMBER << 3 | BYTES)
JOB = varint(pb.AnswerPart.JOB_ID_FIELD_NUMBER << 3 | VARINT)
CHUNK = varint(pb.AnswerPart.CHUNKS_FIELD_NUMBER << 3 | BYTES)
KIND = varint(pb.Chunk.KIND_FIELD_NUMBER << 3 | VARINT)
DATA = varint(pb.Chunk.DATA_FIELD_NUMBER << 3 | BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingPiece:
    """Bytes to append to one job's answer; `kind` is a ChunkKind."""

    job_id: int
    kind: int
    data: PackedBytes


def led_by(piece: LeadingPiece, rest: bytes) -> bytes:
    """A message: the piece, and after it `rest`, a message as protobuf writes it. This is our one copy of a row."""
    chunk = b"".join((KIND, varint(piece.kind), DATA, varint(len(piece.data))))
    part = b"".join((JOB, varint(piece.job_id), CHUNK, varint(len(chunk) + len(piece.data)), chunk))
    return b"".join((ANSWER, varint(len(part) + len(piece.data)), part, piece.data, rest))


def leading_piece(raw: bytes) -> tuple[LeadingPiece, memoryview] | None:
    """The piece, a view of the message, and the rest; None where no such piece leads: then protobuf reads it all."""
    try:
        size, start = _after(ANSWER, raw, 0)
        job_id, place = _after(JOB, raw, start)
        chunk, chunk_start = _after(CHUNK, raw, place)
        kind, place = _after(KIND, raw, chunk_start)
        data, data_start = _after(DATA, raw, place)
    except (IndexError, ValueError):
        return None
    end = start + size
    if not end == chunk_start + chunk == data_start + data <= len(raw):
        return None  # more than this is in it
    view = memoryview(raw)
    return LeadingPiece(job_id=job_id, kind=kind, data=view[data_start:end]), view[end:]


def _after(tag: bytes, raw: bytes, place: int) -> tuple[int, int]:
    """The number behind a tag, and where it ends. Raises ValueError where there is another tag, IndexError."""
    if not raw.startswith(tag, place):
        raise ValueError
    return read_varint(raw, place + len(tag))
