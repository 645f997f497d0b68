"""Fields of messages of selvage.v1: presence, open enums and the fields that requests have in common."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from frontend_service.domain.answer import Answer, Timing
from frontend_service.domain.requests import PromptChoice, Truncation
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, usage_pb2
from shared.errors import InvalidInput
from shared.value_codec import duration_to_pb
from shared.vectors import InputType, TruncationSide

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


def optional_field(message: Any, field: str) -> Any:
    """The value of a field, or None where it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def positive_field(message: Any, field: str) -> int | None:
    """The value of a field, or None where it is not set. Raises InvalidInput below 1."""
    value: int | None = optional_field(message, field)
    if value is not None and value < 1:
        raise InvalidInput(f"{field} is {value}, must be at least 1", field=field)
    return value


Prompted = (
    embedding_pb2.EmbedRequest
    | model_pb2.TokenizeRequest
    | classification_pb2.ClassifyRequest
    | classification_pb2.ClassifyTokensRequest
)


def prompt_from_pb(message: Prompted) -> PromptChoice:
    """The prompt that goes before each text. Only some requests have an input type."""
    number = getattr(message, "input_type", 0)
    return PromptChoice(
        literal=optional_field(message, "prompt"),
        name=optional_field(message, "prompt_name"),
        input_type=enum_from_pb(InputType, number, "input_type", InputType.UNSPECIFIED),
    )


def truncation_from_pb(message: Prompted) -> Truncation:
    """The treatment of texts over the limit."""
    number = getattr(message, "truncation_side", 0)
    side = enum_from_pb(TruncationSide, number, "truncation_side", TruncationSide.RIGHT) if number else None
    return Truncation(
        truncate=optional_field(message, "truncate"), side=side, max_tokens=positive_field(message, "max_tokens")
    )


def id_lists_from_pb(tokenized: Iterable[embedding_pb2.TokenIds]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(token_ids.ids) for token_ids in tokenized)


def usage_to_pb(answer: Answer) -> usage_pb2.Usage:
    """The token counts of a reply."""
    return usage_pb2.Usage(
        prompt_tokens=answer.tokens.total, token_counts=answer.token_counts, truncated=answer.truncated
    )


def timing_to_pb(timing: Timing) -> usage_pb2.Timing:
    return usage_pb2.Timing(
        tokenize=duration_to_pb(timing.tokenize),
        queue=duration_to_pb(timing.queue),
        compute=duration_to_pb(timing.compute),
        transfer=duration_to_pb(timing.transfer),
        postprocess=duration_to_pb(timing.postprocess),
    )
