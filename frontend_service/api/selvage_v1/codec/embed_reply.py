"""The reply to an Embed on its way out: its rows go from where they are into its bytes, in one copy.

protobuf would copy them four times: into the message, into a buffer that grows, again as that grows, and into bytes.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from frontend_service.api.packed import nested
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.usage_pb2 import Timing
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.jobs import PackedBytes, Rows

Vectors = TypeVar("Vectors", DenseVectors, MultiVectors)
PLACES: dict[type[Message], int] = {
    DenseVectors: EmbedResponse.DENSE_FIELD_NUMBER,
    MultiVectors: EmbedResponse.MULTI_VECTOR_FIELD_NUMBER,
}


@dataclass(slots=True)
class EmbedReply:
    """`head` has all but the rows that were added. Leaves as one EmbedResponse."""

    head: EmbedResponse
    _rows: list[PackedBytes] = field(default_factory=list)

    @property
    def timing(self) -> Timing:
        """Where the time went, to be filled."""
        return self.head.timing

    def add(self, vectors: Vectors, rows: Rows) -> None:
        """Vectors of either kind; their bytes are those of `rows`."""
        inner: list[PackedBytes] = [vectors.SerializeToString()]
        for number, data in ((vectors.DATA_FIELD_NUMBER, rows.data), (vectors.SCALES_FIELD_NUMBER, rows.scales)):
            if len(data):
                inner += nested(number, data)
        self._rows += nested(PLACES[type(vectors)], *inner)

    def SerializeToString(self) -> bytes:  # noqa: N802 - as messages have it
        """As the wire has it."""
        return b"".join(self._pieces())

    def serialised_in(self, told: EmbedStreamResponse) -> bytes:
        """The same as the response of a reply to a batch."""
        response = nested(EmbedStreamResponse.RESPONSE_FIELD_NUMBER, *self._pieces())
        return b"".join([told.SerializeToString(), *response])

    def _pieces(self) -> list[PackedBytes]:
        return [self.head.SerializeToString(), *self._rows]
