"""Cards, vectors, durations and errors, which both contracts have: messages <-> domain types. And the fields of a
message as they lie in its bytes. Knows no gRPC.

Format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from enum import IntEnum
from typing import Any

from google.protobuf.duration_pb2 import Duration

from selvage.v1 import model_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.errors import FIELD_LETTERS, Internal, InvalidInput, LimitExceeded, SelvageError, error_classes, shorten
from shared.load import LONGEST_RETRY
from shared.vectors import (
    Activation,
    DataType,
    InputType,
    MultiVectors,
    OutputKind,
    QueryExpansion,
    ScoringMethod,
    Task,
    TokenPooling,
    TruncationSide,
)

MESSAGE_BYTES = 64 * 1024 * 1024
"""Most bytes of a message of any of our contracts."""
MESSAGE_ENTRIES = 200_000
"""Most fields of a message. A field takes two bytes or more on the wire, and sixteen or more once it is parsed."""
NAME_BYTES, NAMES_BYTES = 256, 1024
"""Most bytes of a name that health or reflection is asked for, and of such a request, which holds names alone."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields on the wire."""
TABLE_ROUTE = {"family": "static", "attention": "static", "sparse_head": "static", "include_prompt": True}
"""Fields of a `QueryRoute` that are the same for every table, for clients."""


def number(value: IntEnum) -> Any:
    """An enum's number, typed as the generated stubs want it; a test holds that the contract has the same numbers."""
    return int(value)


def duration_to_pb(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def duration_from_pb(message: Duration) -> float:
    return message.ToNanoseconds() / 1e9


def vectors_to_pb(vectors: MultiVectors) -> vectors_pb2.MultiVectors:
    return vectors_pb2.MultiVectors(
        data_type=number(vectors.data_type),
        dimensions=vectors.dimensions,
        lengths=vectors.lengths,
        data=vectors.data,
        scales=vectors.scales,
    )


def vectors_from_pb(message: vectors_pb2.MultiVectors, field_name: str) -> MultiVectors:
    """Reads vectors from a message. Raises InvalidInput for `field_name` if bytes and shape disagree."""
    try:
        return MultiVectors(
            data_type=DataType(message.data_type or DataType.FLOAT32),
            dimensions=message.dimensions,
            lengths=tuple(message.lengths),
            data=message.data,
            scales=message.scales,
        )
    except ValueError as error:
        raise InvalidInput(f"{field_name}: {error}", field=field_name) from error


def error_to_pb(error: SelvageError) -> pb.JobError:
    message = pb.JobError(reason=error.reason, message=error.message, field=error.field)
    if error.retry_after is not None:
        message.retry_after.CopyFrom(duration_to_pb(error.retry_after))
    return message


def error_from_pb(message: pb.JobError) -> SelvageError:
    """Reads the error of a job. Its texts are cut to a bounded length: they go to a caller and into logs."""
    kind = error_classes().get(message.reason, Internal)
    retry_after = None
    if message.HasField("retry_after"):
        retry_after = min(max(duration_from_pb(message.retry_after), 0.0), LONGEST_RETRY)
    return kind(shorten(message.message), field=shorten(message.field, FIELD_LETTERS), retry_after=retry_after)


def card_to_pb(card: ModelCard) -> model_pb2.ModelCard:
    values = _values(card, ModelCard)
    kinds: dict[str, Any] = {
        "late_interaction": LateInteraction,
        "query_route": QueryRoute,
        "listwise": Listwise,
        "token_pooling": TokenPooling,
    }
    nested = {name: values[name] and _values(values[name], kind) for name, kind in kinds.items()}
    if nested["query_route"] is not None:
        nested["query_route"] |= TABLE_ROUTE
    return model_pb2.ModelCard(**values | nested | {"default_method": card.default_method or 0})


def _values(source: Any, kind: Any) -> dict[str, Any]:
    """The values of the fields of a dataclass `kind`, of one or of the message of that name."""
    return {field.name: getattr(source, field.name) for field in fields(kind)}


def card_from_pb(message: model_pb2.ModelCard) -> ModelCard:
    """Reads a card. Raises ValueError where it makes no sense."""
    return ModelCard(
        **_values(message, ModelCard)
        | {
            "outputs": tuple(map(OutputKind, message.outputs)),
            "methods": tuple(map(ScoringMethod, message.methods)),
            "default_method": ScoringMethod(message.default_method) if message.default_method else None,
            "allowed_dimensions": tuple(message.allowed_dimensions),
            "tasks": tuple(map(Task, message.tasks)),
            "aliases": tuple(message.aliases),
            "labels": tuple(message.labels),
            "activation": Activation(message.activation),
            "prompts": dict(message.prompts),
            "task_models": dict(message.task_models),
            "message_templates": dict(message.message_templates),
            "prompted_message_templates": dict(message.prompted_message_templates),
            "special_tokens": dict(message.special_tokens),
            "special_ids": tuple(message.special_ids),
            "late_interaction": _late_interaction(message),
            "query_route": _query_route(message),
            "listwise": _listwise(message),
            "token_pooling": _token_pooling(message),
            "truncation_side": TruncationSide(message.truncation_side or TruncationSide.RIGHT),
        }
    )


def _late_interaction(message: model_pb2.ModelCard) -> LateInteraction | None:
    if not message.HasField("late_interaction"):
        return None
    reading = message.late_interaction
    expansion = QueryExpansion(reading.query_expansion)
    changed = {"query_expansion": expansion, "skiplist": tuple(reading.skiplist)}
    return LateInteraction(**_values(reading, LateInteraction) | changed)


def _listwise(message: model_pb2.ModelCard) -> Listwise | None:
    if not message.HasField("listwise"):
        return None
    return Listwise(**_values(message.listwise, Listwise))


def pooling_to_pb(pooling: TokenPooling | None) -> model_pb2.TokenPooling | None:
    return None if pooling is None else model_pb2.TokenPooling(**_values(pooling, TokenPooling))


def pooling_from_pb(message: Any, field_name: str) -> TokenPooling | None:
    """Reads a field of the message `selvage.v1.TokenPooling`. Raises InvalidInput where it makes no sense."""
    if not message.HasField(field_name):
        return None
    return TokenPooling(**_values(getattr(message, field_name), TokenPooling))


def _token_pooling(message: model_pb2.ModelCard) -> TokenPooling | None:
    try:
        return pooling_from_pb(message, "token_pooling")
    except InvalidInput as error:
        raise ValueError(error.message) from error


def _query_route(message: model_pb2.ModelCard) -> QueryRoute | None:
    if not message.HasField("query_route"):
        return None
    route = message.query_route
    return QueryRoute(
        **_values(route, QueryRoute)
        | {
            "default_input_type": InputType(route.default_input_type),
            "special_ids": tuple(route.special_ids),
            "truncation_side": TruncationSide(route.truncation_side or TruncationSide.RIGHT),
        }
    )


def check_entries(raw: bytes) -> None:
    """Raises LimitExceeded if a message has more than MESSAGE_ENTRIES fields; those of nested messages are not counted.

    Bytes that are no message are left for the parser to refuse.
    """
    for count, _ in enumerate(wire_fields(raw, 0, len(raw)), start=1):
        if count > MESSAGE_ENTRIES:
            raise LimitExceeded(f"the message has more than {MESSAGE_ENTRIES} entries")


def check_names(raw: bytes, field_names: Mapping[int, str]) -> None:
    """Raises LimitExceeded if a request that holds names alone has a long one, or is large.

    `field_names`: those of its fields, by number.
    """
    for field_number, start, end in wire_fields(raw, 0, len(raw)):
        if end - start > NAME_BYTES and field_number in field_names:
            field = field_names[field_number]
            raise LimitExceeded(f"{field} has {end - start} bytes, the limit is {NAME_BYTES}", field=field)
        if end > NAMES_BYTES:
            break
    if len(raw) > NAMES_BYTES:
        raise LimitExceeded(f"the request has {len(raw)} bytes, the limit is {NAMES_BYTES}")


def wire_fields(raw: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field of a message that lies there, and where its value begins and ends.

    It stops where the bytes are no message.
    """
    with suppress(IndexError):
        while start < end:
            tag, start = read_varint(raw, start)
            kind = tag & 7
            if kind == BYTES:
                size, start = read_varint(raw, start)
                stop = start + size
            elif kind == VARINT:
                _, stop = read_varint(raw, start)
            elif kind in (FIXED64, FIXED32):
                stop = start + (8 if kind == FIXED64 else 4)
            else:
                return
            yield tag >> 3, start, min(stop, end)
            start = stop


def read_varint(raw: bytes, place: int) -> tuple[int, int]:
    """Reads a varint (seven bits a byte, lowest first); returns its value and the position after it.

    Raises IndexError where the bytes end within it, and where it has more bytes than a number of 64 bits.
    """
    value = shift = 0
    while shift < 70:
        byte = raw[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise IndexError("a varint has at most ten bytes")


def varint(value: int) -> bytes:
    """Writes a number of 0 or more as a varint: seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
