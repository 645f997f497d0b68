"""Cards, vectors, durations and errors, which both contracts have: messages <-> domain types.

Knows no gRPC.
"""

from dataclasses import fields
from enum import IntEnum
from typing import Any

from google.protobuf.duration_pb2 import Duration

from selvage.v1 import model_pb2, vectors_pb2
from selvage.worker.v1 import worker_pb2 as pb
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.errors import FIELD_LETTERS, Internal, InvalidInput, SelvageError, error_classes, shorten
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
    TruncationSide,
)

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
    values = {field.name: getattr(card, field.name) for field in fields(card)}
    nested = {
        name: None if part is None else {field.name: getattr(part, field.name) for field in fields(part)}
        for name, part in (
            ("late_interaction", card.late_interaction),
            ("query_route", card.query_route),
            ("listwise", card.listwise),
        )
    }
    if nested["query_route"] is not None:
        nested["query_route"] |= TABLE_ROUTE
    return model_pb2.ModelCard(**values | nested | {"default_method": card.default_method or 0})


def card_from_pb(message: model_pb2.ModelCard) -> ModelCard:
    values = {field.name: getattr(message, field.name) for field in fields(ModelCard)}
    return ModelCard(
        **values
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
            "special_tokens": dict(message.special_tokens),
            "special_ids": tuple(message.special_ids),
            "late_interaction": _late_interaction(message),
            "query_route": _query_route(message),
            "listwise": _listwise(message),
            "truncation_side": TruncationSide(message.truncation_side or TruncationSide.RIGHT),
        }
    )


def _late_interaction(message: model_pb2.ModelCard) -> LateInteraction | None:
    if not message.HasField("late_interaction"):
        return None
    reading = message.late_interaction
    values = {field.name: getattr(reading, field.name) for field in fields(LateInteraction)}
    expansion = QueryExpansion(reading.query_expansion)
    return LateInteraction(**values | {"query_expansion": expansion, "skiplist": tuple(reading.skiplist)})


def _listwise(message: model_pb2.ModelCard) -> Listwise | None:
    if not message.HasField("listwise"):
        return None
    return Listwise(**{field.name: getattr(message.listwise, field.name) for field in fields(Listwise)})


def _query_route(message: model_pb2.ModelCard) -> QueryRoute | None:
    if not message.HasField("query_route"):
        return None
    route = message.query_route
    values = {field.name: getattr(route, field.name) for field in fields(QueryRoute)}
    return QueryRoute(
        **values
        | {
            "default_input_type": InputType(route.default_input_type),
            "special_ids": tuple(route.special_ids),
            "truncation_side": TruncationSide(route.truncation_side or TruncationSide.RIGHT),
        }
    )
