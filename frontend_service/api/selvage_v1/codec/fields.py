"""Fields of public messages: presence, open enums and what all requests share."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from frontend_service.domain.answer import Answer, Timing
from frontend_service.domain.requests import PromptChoice, Truncation
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, usage_pb2
from shared.codec.fields import duration_to_pb
from shared.errors import InvalidInput
from shared.vectors import InputType, TruncationSide

E = TypeVar("E", bound=IntEnum)


def enum(kind: type[E], number: int, field: str, default: E) -> E:
    """Unknown numbers arrive as plain ints; 0 is the default."""
    if number == 0:
        return default
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.value} ({each.name})" for each in kind)
        raise InvalidInput(f"{field} is {number}; there are {known}", field=field) from None


def optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def positive(message: Any, field: str) -> int | None:
    value: int | None = optional(message, field)
    if value is not None and value < 1:
        raise InvalidInput(f"{field} is {value}, must be at least 1", field=field)
    return value


Prompted = (
    embedding_pb2.EmbedRequest
    | model_pb2.TokenizeRequest
    | classification_pb2.ClassifyRequest
    | classification_pb2.ClassifyTokensRequest
)


def prompt(message: Prompted) -> PromptChoice:
    """What goes before each text; only some requests tell what a text is."""
    number = getattr(message, "input_type", 0)
    return PromptChoice(
        literal=optional(message, "prompt"),
        name=optional(message, "prompt_name"),
        input_type=enum(InputType, number, "input_type", InputType.UNSPECIFIED),
    )


def cut(message: Prompted) -> Truncation:
    """What to do with texts over the limit."""
    number = getattr(message, "truncation_side", 0)
    side = enum(TruncationSide, number, "truncation_side", TruncationSide.RIGHT) if number else None
    return Truncation(truncate=optional(message, "truncate"), side=side, max_tokens=positive(message, "max_tokens"))


def id_lists(tokenized: Iterable[embedding_pb2.TokenIds]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each.ids) for each in tokenized)


def usage(answer: Answer) -> usage_pb2.Usage:
    """Tokens of a reply."""
    counts = answer.tokens.lengths
    return usage_pb2.Usage(prompt_tokens=sum(counts), token_counts=counts, truncated=answer.truncated)


def timing_to_pb(timing: Timing) -> usage_pb2.Timing:
    return usage_pb2.Timing(
        tokenize=duration_to_pb(timing.tokenize),
        queue=duration_to_pb(timing.queue),
        compute=duration_to_pb(timing.compute),
        transfer=duration_to_pb(timing.transfer),
        postprocess=duration_to_pb(timing.postprocess),
    )
