"""Embed and EmbedStream of selvage.v1 over gRPC: messages <-> domain types, and the service.

Also the fields that its requests and replies have in common with those of other methods. The reply is serialised with
one copy of its rows: protobuf would copy them four times, into the message, into a buffer that grows, again as that
grows, and into bytes.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from frontend_service.api.packed import as_int32, put_floats
from frontend_service.api.selvage_v1.embed_stream import BatchStream
from frontend_service.api.streams import begin_replies
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import (
    DEFAULT_PROMPT,
    DEFAULT_TRUNCATION,
    EmbedRequest,
    PromptChoice,
    SpanPooling,
    Truncation,
)
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer, Timing
from selvage.v1 import classification_pb2, embedding_pb2, ranking_pb2, usage_pb2, vectors_pb2
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.embedding_pb2_grpc import EmbeddingServiceServicer
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.caller import TERMS
from shared.errors import InvalidInput
from shared.jobs import PackedBytes, Rows
from shared.server.interceptor import CALLER
from shared.value_codec import BYTES, number, varint
from shared.vectors import DataType, InputType, OutputKind, TokenPooling, TruncationSide

Context = grpc.aio.ServicerContext[Any, Any]
E = TypeVar("E", bound=IntEnum)


def enum_from_pb(kind: type[E], number: int, field: str, default: E) -> E:
    """Converts a number to its enum; 0 is the default. Raises InvalidInput for an unknown number."""
    if number == 0:
        return default
    try:
        return kind(number)
    except ValueError:
        choices = ", ".join(f"{member.value} ({member.name})" for member in kind)
        raise InvalidInput(f"{field} is {number}; there are {choices}", field=field) from None


Fields = Mapping[str, Any]
"""The fields of a message that are set, by their names."""


def fields_of(message: Message) -> Fields:
    """The fields of a message that are set; of those that are not optional, the ones that are not empty or 0."""
    return {field.name: value for field, value in message.ListFields()}


def positive_field(fields: Fields, field: str) -> int | None:
    """The value of a field, or None where it is not set. Raises InvalidInput below 1."""
    value: int | None = fields.get(field)
    if value is not None and value < 1:
        raise InvalidInput(f"{field} is {value}, must be at least 1", field=field)
    return value


PROMPT_FIELDS = ("prompt", "prompt_name", "input_type")
TRUNCATION_FIELDS = ("truncate", "truncation_side", "max_tokens")


def prompt_from_pb(fields: Fields) -> PromptChoice:
    """The prompt that goes before each text. Only some requests have an input type."""
    if fields.keys().isdisjoint(PROMPT_FIELDS):
        return DEFAULT_PROMPT
    number = fields.get("input_type", 0)
    return PromptChoice(
        literal=fields.get("prompt"),
        name=fields.get("prompt_name"),
        input_type=enum_from_pb(InputType, number, "input_type", InputType.UNSPECIFIED),
    )


def truncation_from_pb(fields: Fields) -> Truncation:
    """The treatment of texts over the limit."""
    if fields.keys().isdisjoint(TRUNCATION_FIELDS):
        return DEFAULT_TRUNCATION
    number = fields.get("truncation_side", 0)
    side = enum_from_pb(TruncationSide, number, "truncation_side", TruncationSide.RIGHT) if number else None
    return Truncation(truncate=fields.get("truncate"), side=side, max_tokens=positive_field(fields, "max_tokens"))


def id_lists_from_pb(tokenized: Iterable[embedding_pb2.TokenIds]) -> tuple[Sequence[int], ...]:
    """Lists of ids, four bytes an id: a tuple would take nine times as many, and a message has millions."""
    return tuple([array("i", token_ids.ids) for token_ids in tokenized])


def usage_to_pb(answer: Answer) -> usage_pb2.Usage:
    """The token counts of a reply."""
    return usage_pb2.Usage(
        prompt_tokens=answer.tokens.total, token_counts=answer.token_counts, truncated=answer.truncated
    )


def put_timing(message: usage_pb2.Timing, timing: Timing) -> None:
    """Fills in the times of a reply."""
    message.tokenize.FromNanoseconds(round(timing.tokenize * 1e9))
    message.queue.FromNanoseconds(round(timing.queue * 1e9))
    message.compute.FromNanoseconds(round(timing.compute * 1e9))
    message.transfer.FromNanoseconds(round(timing.transfer * 1e9))
    message.postprocess.FromNanoseconds(round(timing.postprocess * 1e9))


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
    _rows: list[PackedBytes] = dataclass_field(default_factory=list)

    @property
    def timing(self) -> usage_pb2.Timing:
        """The times of the response, to be filled."""
        return self.head.timing

    def add_rows(self, vectors: Vectors, rows: Rows) -> None:
        """Adds a field of vectors: `vectors` without its numbers, whose bytes are in `rows`."""
        inner: list[PackedBytes] = [vectors.SerializeToString()]
        for field_number, data in ((vectors.DATA_FIELD_NUMBER, rows.data), (vectors.SCALES_FIELD_NUMBER, rows.scales)):
            if len(data):
                inner += length_delimited(field_number, data)
        self._rows += length_delimited(FIELD_NUMBERS[type(vectors)], *inner)

    def SerializeToString(self) -> bytes:
        """Serialises the response."""
        return b"".join(self._pieces())

    def serialize_in(self, head: EmbedStreamResponse) -> bytes:
        """Serialises the response within the reply to a batch, whose other fields are in `head`."""
        response = length_delimited(EmbedStreamResponse.RESPONSE_FIELD_NUMBER, *self._pieces())
        return b"".join([head.SerializeToString(), *response])

    def _pieces(self) -> list[PackedBytes]:
        return [self.head.SerializeToString(), *self._rows]


def length_delimited(number: int, *inner: PackedBytes) -> list[PackedBytes]:
    """A length-delimited field (bytes or a message) whose content is `inner`, end to end, as pieces: none is copied."""
    return [varint(number << 3 | BYTES) + varint(sum(map(len, inner))), *inner]


DEFAULT_LIMITS = Limits()


def embed_request_from_pb(message: embedding_pb2.EmbedRequest, limits: Limits = DEFAULT_LIMITS) -> EmbedRequest:
    """Reads a message. Raises InvalidInput, and LimitExceeded for more spans than `limits` allow."""
    fields, outputs = fields_of(message), dict[OutputKind, None]()
    for index, kind in enumerate(fields.get("outputs", ())):
        if kind == 0:
            raise InvalidInput(f"outputs[{index}] is unspecified", field=f"outputs[{index}]")
        outputs[enum_from_pb(OutputKind, kind, f"outputs[{index}]", OutputKind.DENSE)] = None
    return EmbedRequest(
        model=message.model,
        texts=tuple(fields.get("texts", ())),
        tokenized=id_lists_from_pb(fields.get("tokenized", ())),
        prompt=prompt_from_pb(fields),
        cut=truncation_from_pb(fields),
        outputs=tuple(outputs),
        dimensions=fields.get("dimensions"),
        normalize=fields.get("normalize"),
        data_type=enum_from_pb(DataType, message.data_type, "data_type", DataType.FLOAT32),
        return_token_ids=message.return_token_ids,
        sparse_top_k=positive_field(fields, "sparse_top_k"),
        pooling=pooling_from_pb(fields),
        span_pooling=_span_pooling_from_pb(fields, limits),
    )


def _span_pooling_from_pb(fields: Fields, limits: Limits) -> SpanPooling | None:
    spans_of_texts, overlap = fields.get("spans", ()), fields.get("window_overlap")
    if not spans_of_texts and "late_chunking" not in fields:
        if overlap is not None:
            raise InvalidInput("window_overlap needs late_chunking or spans", field="window_overlap")
        return None
    if not spans_of_texts:
        return SpanPooling(window_overlap=overlap)
    if "late_chunking" in fields:
        raise InvalidInput("late_chunking and spans are both given; at most one may be", field="spans")
    for index, spans in enumerate(spans_of_texts):
        if len(spans.starts) != len(spans.ends):
            counts = f"{len(spans.starts)} starts and {len(spans.ends)} ends"
            raise InvalidInput(f"spans[{index}] has {counts}", field=f"spans[{index}]")
    # Before tuples are made of them, which take thirty times the bytes of the message.
    limits.check_count(sum(len(spans.starts) for spans in spans_of_texts), "spans", limits.spans)
    bounds = tuple(tuple(zip(spans.starts, spans.ends, strict=True)) for spans in spans_of_texts)
    return SpanPooling(spans=bounds, window_overlap=overlap)


def pooling_from_pb(fields: Fields) -> TokenPooling | None:
    """The pooling of token rows that a request asks for, if any. Raises InvalidInput."""
    factor, protected = fields.get("pool_factor"), fields.get("protected_tokens")
    if factor is None:
        if protected is not None:
            raise InvalidInput("protected_tokens needs pool_factor", field="protected_tokens")
        return None
    return TokenPooling(pool_factor=factor, protected_tokens=1 if protected is None else protected)


def embed_response_to_pb(request: EmbedRequest, answer: Answer) -> EmbedReply:
    result, data_type = answer.result, number(request.data_type)
    response = embedding_pb2.EmbedResponse(model=answer.model, usage=usage_to_pb(answer))
    reply = EmbedReply(response)
    if (dense := result.dense) is not None:
        count = request.dense_rows
        reply.add_rows(vectors_pb2.DenseVectors(data_type=data_type, dimensions=dense.dimensions, count=count), dense)
    if result.sparse is not None:
        response.sparse.lengths.extend(result.sparse.lengths)
        response.sparse.indices.extend(as_int32(result.sparse.indices))
        put_floats(response.sparse, "values", result.sparse.values)
    if (tokens := result.tokens) is not None:
        vectors = vectors_pb2.MultiVectors(
            data_type=data_type, dimensions=tokens.dimensions, lengths=result.row_lengths
        )
        if request.return_token_ids:
            vectors.token_ids.extend(as_int32(result.token_ids))
        reply.add_rows(vectors, tokens)
    return reply


Q = TypeVar("Q")
R = TypeVar(
    "R",
    EmbedReply,
    ranking_pb2.RerankResponse,
    ranking_pb2.ScoreResponse,
    ranking_pb2.MaxSimResponse,
    classification_pb2.ClassifyResponse,
    classification_pb2.ClassifyTokensResponse,
)
"""Replies that have times."""


class SelvageServicer:
    """What all methods have in common."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._pipeline = frontend, frontend.pipeline

    async def _read(self, read: Callable[[Any], Q], message: Any) -> Q:
        """The request of the current call's message. Raises what `read` raises."""
        return await self._pipeline.offload(self._frontend.calls.admission.message_size, read, message)

    async def _reply(self, answer: Answer, size: int, write: Callable[[], R]) -> R:
        """The reply, of about `size` bytes, with its times."""
        reply, timing = await self._pipeline.reply(answer, size, write)
        put_timing(reply.timing, timing)
        return reply


class EmbeddingServicer(SelvageServicer, EmbeddingServiceServicer):
    """The service selvage.v1.EmbeddingService."""

    async def Embed(self, message: embedding_pb2.EmbedRequest, context: Context) -> EmbedReply:
        return await self.embed(message, self._frontend.calls.admission.message_size)

    async def embed(self, message: embedding_pb2.EmbedRequest, size: int) -> EmbedReply:
        """Answers a message of about `size` bytes."""
        read = partial(embed_request_from_pb, limits=self._frontend.limits)
        request = await self._pipeline.offload(size, read, message)
        answer = await self._frontend.embedding.embed(request, TERMS.get())
        return await self._reply(answer, answer.size, partial(embed_response_to_pb, request, answer))

    async def EmbedStream(self, messages: Any, context: Context) -> None:
        """Answers every batch. `messages` are those of the interceptor."""
        caller = CALLER.get()
        with self._frontend.calls.stream(caller) as stream:
            replies = await begin_replies(context)
            await BatchStream(self._frontend, self.embed, caller, stream, replies).run(messages)
