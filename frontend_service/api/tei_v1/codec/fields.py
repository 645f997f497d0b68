"""Fields of messages of tei.v1: options, texts, and what every answer tells of itself."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from frontend_service.domain.answer import Timing
from frontend_service.domain.requests import PromptChoice, Truncation
from shared.errors import InvalidInput
from shared.vectors import TruncationSide
from tei.v1 import tei_pb2 as pb

INPUTS = frozenset({"inputs", "ids"})
"""Fields that differ between messages which are answered together."""
SIDES = {
    pb.TRUNCATION_DIRECTION_RIGHT: TruncationSide.RIGHT,
    pb.TRUNCATION_DIRECTION_LEFT: TruncationSide.LEFT,
}
NANOSECONDS, MILLISECONDS = 1e9, 1e3
"""In a second."""


class TruncatableMessage(Protocol):
    """A request whose texts may be cut."""

    @property
    def truncate(self) -> bool: ...
    @property
    def truncation_direction(self) -> Any: ...


class Answered(Protocol):
    """A reply that tells what it took."""

    @property
    def metadata(self) -> pb.Metadata: ...


def options(message: Message) -> Hashable:
    """All that is asked of a text but the text; messages where this is equal may be answered together."""
    return tuple((field.number, value) for field, value in message.ListFields() if field.name not in INPUTS)


def cut(message: TruncatableMessage) -> Truncation:
    """What to do with texts over the limit."""
    side = SIDES.get(message.truncation_direction)
    if side is None:
        known = ", ".join(f"{number} ({side.name})" for number, side in SIDES.items())
        field = "truncation_direction"
        raise InvalidInput(f"{field} is {message.truncation_direction}; there are {known}", field=field)
    return Truncation(truncate=truncate(message), side=side)


def truncate(message: Any) -> bool | None:
    """What is said of texts over the limit; None where nothing is."""
    said: bool = message.truncate
    return said if message.HasField("truncate") else None


def prompt(message: Any) -> PromptChoice:
    """A prompt by its name."""
    return PromptChoice(name=message.prompt_name if message.HasField("prompt_name") else None)


def texts(inputs: Iterable[str]) -> tuple[str, ...]:
    """Raises InvalidInput for an empty one."""
    found = tuple(inputs)
    if not all(found):
        raise empty(found.index(""))
    return found


def empty(place: int) -> InvalidInput:
    """Of the text at that place."""
    return InvalidInput(f"texts[{place}] is empty", field=f"texts[{place}]")


def counted(*given: str, tokens: int) -> pb.Metadata:
    """What was computed for these texts; the times come later."""
    return pb.Metadata(compute_chars=sum(map(len, given)), compute_tokens=tokens)


def put_times(replies: Sequence[Answered], timing: Timing, seconds: float) -> None:
    """Where the time of replies went that were made together, in `seconds`."""
    times = pb.Metadata(
        total_time_ns=int(seconds * NANOSECONDS),
        tokenization_time_ns=int(timing.tokenize * NANOSECONDS),
        queue_time_ns=int(timing.queue * NANOSECONDS),
        inference_time_ns=int(timing.compute * NANOSECONDS),
    )
    for reply in replies:
        reply.metadata.MergeFrom(times)


def headers(metadata: pb.Metadata, device: str) -> tuple[tuple[str, str], ...]:
    """The same in the words that scripts read beside a reply; times in whole milliseconds."""
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
