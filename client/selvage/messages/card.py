"""GetModel and ListModels: the requests, and the card of a model from its message. No I/O."""

from typing import Any

from selvage.messages.inputs import InputPart, Operation
from selvage.messages.options import enum_name
from selvage.results import LateInteraction, Listwise, ModelCard, QueryRoute, TokenPooling
from selvage.v1 import model_pb2

NESTED: dict[str, Any] = {kind.__name__: kind for kind in (LateInteraction, QueryRoute, Listwise, TokenPooling)}
"""What messages in the fields of a card become; such a field may be unset."""


class Cards(Operation[Any]):
    """The request and reply of one `model`, for one card, or of one `models`, for all."""

    def __init__(self, request: model_pb2.GetModelRequest | model_pb2.ListModelsRequest, seconds: float | None) -> None:
        super().__init__(seconds=seconds)
        self._request = request
        self._cards: Any = None

    def message(self, _: InputPart) -> Any:
        return self._request

    def add_reply(self, _: InputPart, reply: Any) -> None:
        single = isinstance(reply, model_pb2.GetModelResponse)
        self._cards = card_from_pb(reply.card) if single else [card_from_pb(card) for card in reply.cards]

    def result(self) -> Any:
        return self._cards


def card_from_pb(message: Any, kind: Any = ModelCard) -> Any:
    """The card of a `selvage.v1.ModelCard`, or a part of it. `kind`: the class, which has the fields of the message."""
    return kind(**{field.name: _value(message, field) for field in message.DESCRIPTOR.fields})


def _value(message: Any, field: Any) -> Any:
    """The value of a field: enums as words, lists as tuples, maps as dicts."""
    value = getattr(message, field.name)
    if field.enum_type is not None:
        words = tuple(_word(field.enum_type, number) for number in (value if field.is_repeated else [value]))
        return words if field.is_repeated else words[0]
    if field.message_type is not None and field.message_type.name in NESTED:
        return card_from_pb(value, NESTED[field.message_type.name]) if message.HasField(field.name) else None
    if field.message_type is not None:
        return dict(value)
    return tuple(value) if field.is_repeated else value


def _word(enum: Any, number: int) -> str:
    """The name of a number in an enum's field; empty for 0, which means none."""
    return enum_name(enum, number) if number else ""
