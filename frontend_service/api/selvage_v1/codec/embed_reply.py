"""The reply to an Embed, serialised with one copy of its rows.

protobuf would copy them four times: into the message, into a buffer that grows, again as that grows, and into bytes.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from frontend_service.api.packed import length_delimited
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.usage_pb2 import Timing
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.jobs import PackedBytes, Rows

Vectors = TypeVar("Vectors", DenseVectors, MultiVectors)
FIELD_NUMBERS: dict[type[Message], int] = {
    DenseVectors: EmbedResponse.DENSE_FIELD_NUMBER,
    MultiVectors: EmbedResponse.MULTI_VECTOR_FIELD_NUMBER,
}
"""The field of an EmbedResponse that takes each kind of vectors."""


@dataclass(slots=True)
class EmbedReply:
    """An EmbedResponse whose rows are not in its message: `head` has all other fields."""

    head: EmbedResponse
    _rows: list[PackedBytes] = field(default_factory=list)

    @property
    def timing(self) -> Timing:
        """The times of the response, to be filled."""
        return self.head.timing

    def add_rows(self, vectors: Vectors, rows: Rows) -> None:
        """Adds a field of vectors: `vectors` without its numbers, whose bytes are in `rows`."""
        inner: list[PackedBytes] = [vectors.SerializeToString()]
        for number, data in ((vectors.DATA_FIELD_NUMBER, rows.data), (vectors.SCALES_FIELD_NUMBER, rows.scales)):
            if len(data):
                inner += length_delimited(number, data)
        self._rows += length_delimited(FIELD_NUMBERS[type(vectors)], *inner)

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name that messages have for it
        """Serialises the response."""
        return b"".join(self._pieces())

    def serialize_in(self, head: EmbedStreamResponse) -> bytes:
        """Serialises the response within the reply to a batch, whose other fields are in `head`."""
        response = length_delimited(EmbedStreamResponse.RESPONSE_FIELD_NUMBER, *self._pieces())
        return b"".join([head.SerializeToString(), *response])

    def _pieces(self) -> list[PackedBytes]:
        return [self.head.SerializeToString(), *self._rows]
