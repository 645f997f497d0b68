"""GetModel and ListModels: the requests, and the card of a model from its message. No I/O."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from selvage.messages.inputs import InputPart
from selvage.messages.options import enum_name
from selvage.model_card import LateInteraction, Listwise, ModelCard, QueryRoute
from selvage.v1 import model_pb2, vectors_pb2

ENUMS: dict[str, Any] = {
    "outputs": vectors_pb2.OutputKind,
    "methods": vectors_pb2.ScoringMethod,
    "default_method": vectors_pb2.ScoringMethod,
    "tasks": model_pb2.Task,
    "activation": model_pb2.Activation,
    "query_expansion": model_pb2.QueryExpansion,
    "truncation_side": vectors_pb2.TruncationSide,
    "default_input_type": vectors_pb2.InputType,
}
"""The enum of each field whose values are numbers of an enum."""
NESTED: dict[str, Any] = {"late_interaction": LateInteraction, "query_route": QueryRoute, "listwise": Listwise}
"""Fields that are messages; they may be unset."""
LISTS = {"outputs", "methods", "tasks", "labels", "allowed_dimensions", "skiplist", "aliases", "special_ids"}
"""Fields that are tuples."""


class Cards:
    """The request and reply of one `model`, for one card, or of one `models`, for all."""

    def __init__(self, request: model_pb2.GetModelRequest | model_pb2.ListModelsRequest, seconds: float | None) -> None:
        self.seconds, self.progress, self.size = seconds, False, 1
        self._request = request
        self._cards: Any = None

    def parts(self) -> Iterator[InputPart]:
        yield InputPart(start=0, stop=1)

    def message(self, _: InputPart) -> Any:
        return self._request

    def offsets(self, _: InputPart) -> Mapping[str, int]:
        return {}

    def add_reply(self, _: InputPart, reply: Any) -> None:
        if isinstance(reply, model_pb2.GetModelResponse):
            self._cards = card_from_pb(reply.card)
        else:
            self._cards = [card_from_pb(card) for card in reply.cards]

    def result(self) -> Any:
        return self._cards


def card_from_pb(message: Any) -> ModelCard:
    """The card of a `selvage.v1.ModelCard`."""
    return ModelCard(**{name: _value(message, name) for name in _names(ModelCard)})


def _names(kind: type[ModelCard | LateInteraction | QueryRoute | Listwise]) -> list[str]:
    return [field.name for field in fields(kind)]


def _value(message: Any, name: str) -> Any:
    """The value of one field."""
    value = getattr(message, name)
    if name in NESTED:
        if not message.HasField(name):
            return None
        return NESTED[name](**{inner: _value(value, inner) for inner in _names(NESTED[name])})
    if name in ENUMS:
        choices = [_choice(name, number) for number in (value if name in LISTS else [value])]
        return tuple(choices) if name in LISTS else choices[0]
    if name in ("prompts", "special_tokens"):
        return dict(value)
    return tuple(value) if name in LISTS else value


def _choice(field: str, number: int) -> str:
    """The name of a number in an enum's field; empty for 0, which means none."""
    return enum_name(ENUMS[field], number) if number else ""
