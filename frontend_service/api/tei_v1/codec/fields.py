"""Fields of messages of tei.v1: options, texts, and the metadata of every reply."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from frontend_service.domain.answer import Timing
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.errors import InvalidInput
from shared.vectors import TruncationSide
from tei.v1 import tei_pb2 as pb

INPUTS = frozenset({"inputs", "ids"})
"""Fields that may differ between messages of a group."""
SIDES = {
    pb.TRUNCATION_DIRECTION_RIGHT: TruncationSide.RIGHT,
    pb.TRUNCATION_DIRECTION_LEFT: TruncationSide.LEFT,
}
NANOSECONDS, MILLISECONDS = 1e9, 1e3
"""Nanoseconds and milliseconds in a second."""


class TruncatableMessage(Protocol):
    """A request whose texts may be truncated."""

    @property
    def truncate(self) -> bool: ...
    @property
    def truncation_direction(self) -> Any: ...


class ReplyWithMetadata(Protocol):
    """A reply with counts and times."""

    @property
    def metadata(self) -> pb.Metadata: ...


def options_key(message: Message) -> Hashable:
    """All fields of a message but its text. Messages may share a group where they are equal."""
    return tuple((field.number, value) for field, value in message.ListFields() if field.name not in INPUTS)


def truncation_from_pb(message: TruncatableMessage) -> Truncation:
    """The treatment of texts over the limit."""
    side = SIDES.get(message.truncation_direction)
    if side is None:
        choices = ", ".join(f"{number} ({side.name})" for number, side in SIDES.items())
        field = "truncation_direction"
        raise InvalidInput(f"{field} is {message.truncation_direction}; there are {choices}", field=field)
    return Truncation(truncate=optional_truncate(message), side=side)


def optional_truncate(message: Any) -> bool | None:
    """The field `truncate`, or None where it is not set."""
    truncate: bool = message.truncate
    return truncate if message.HasField("truncate") else None


def prompt_from_pb(message: Any) -> PromptChoice:
    """The prompt that goes before each text, by its name."""
    return PromptChoice(name=message.prompt_name if message.HasField("prompt_name") else None)


def texts_from_pb(inputs: Iterable[str]) -> tuple[str, ...]:
    """The texts of a group. Raises InvalidInput for an empty text."""
    texts = tuple(inputs)
    if not all(texts):
        raise empty_text_error(texts.index(""))
    return texts


def empty_text_error(place: int) -> InvalidInput:
    """The error for an empty text at a place of the group."""
    return InvalidInput("inputs is empty", field=f"texts[{place}]")


def compute_metadata(*texts: str, tokens: int) -> pb.Metadata:
    """The metadata of a reply without its times: characters and tokens that were computed."""
    return pb.Metadata(compute_chars=sum(map(len, texts)), compute_tokens=tokens)


def put_times(replies: Sequence[ReplyWithMetadata], timing: Timing, seconds: float) -> None:
    """Adds times to the metadata of replies that were made together, in `seconds`."""
    times = pb.Metadata(
        total_time_ns=int(seconds * NANOSECONDS),
        tokenization_time_ns=int(timing.tokenize * NANOSECONDS),
        queue_time_ns=int(timing.queue * NANOSECONDS),
        inference_time_ns=int(timing.compute * NANOSECONDS),
    )
    for reply in replies:
        reply.metadata.MergeFrom(times)


def metadata_headers(metadata: pb.Metadata, device: str) -> tuple[tuple[str, str], ...]:
    """Metadata as the headers that scripts of text-embeddings-inference read; times in whole milliseconds."""
    total = _milliseconds(metadata.total_time_ns)
    return (
        ("x-compute-type", "cpu" if device == "cpu" else "gpu"),
        ("x-compute-time", total),
        ("x-compute-characters", str(metadata.compute_chars)),
        ("x-compute-tokens", str(metadata.compute_tokens)),
        ("x-total-time", total),
        ("x-tokenization-time", _milliseconds(metadata.tokenization_time_ns)),
        ("x-queue-time", _milliseconds(metadata.queue_time_ns)),
        ("x-inference-time", _milliseconds(metadata.inference_time_ns)),
    )


def _milliseconds(nanoseconds: int) -> str:
    return str(int(nanoseconds / NANOSECONDS * MILLISECONDS))
