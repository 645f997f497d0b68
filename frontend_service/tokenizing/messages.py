"""Texts as chat messages: what a model's template writes around a text, and which tokens of it a cut keeps.

A message over the limit is cut as any text is, and the tokens behind its text are then written over its last ones, as
sentence-transformers 6 does it: so the token that a pooling reads stays the template's last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from tokenizers import Encoding

from frontend_service.tokenizing.tokens import shortened
from shared.card import ModelCard, message_of
from shared.errors import InvalidInput
from shared.vectors import InputType, TruncationSide

TASKS = {InputType.UNSPECIFIED: "", InputType.QUERY: "query", InputType.DOCUMENT: "document"}
"""Keys of a card's templates by kind of text."""
FILLERS = ("0", "1 2 3 4")
"""Texts whose messages have only the template's tokens in common at both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a template writes around a text: the number of tokens before it, and the tokens behind it."""

    leading: int
    ending: Encoding


class MessageWriter:
    """Writes texts as chat messages of one model. Its methods may run in several threads at once."""

    def __init__(self, card: ModelCard, read: Callable[[str], Encoding]) -> None:
        """`read` tokenises a message, with its special tokens."""
        self._card, self._read = card, read
        self._frame = lru_cache(maxsize=16)(self._measured)

    def message(self, text: str, prompt: str, input_type: InputType) -> str:
        """Writes a text with its prompt, which is empty where the template has no place for one."""
        templates = self._card.prompted_message_templates if prompt else self._card.message_templates
        return message_of(templates.get(TASKS[input_type]) or templates[""], text, prompt)

    def check_room(self, limit: int, prompt: str, input_type: InputType, field: str) -> None:
        """Raises InvalidInput where a message that is cut to `limit` tokens would keep nothing of its text."""
        frame = self._frame(prompt, input_type)
        around = frame.leading + len(frame.ending)
        if around >= limit:
            raise InvalidInput(
                f"{field}: the chat message has {around} tokens around a text, the limit is {limit} and leaves no room "
                "for the text",
                field=field,
            )

    def ended(self, cut: Encoding, whole: Encoding, prompt: str, input_type: InputType) -> Encoding:
        """Returns a message at the limit with the template's tokens at its end. `whole`: the message uncut."""
        ending = self._frame(prompt, input_type).ending
        length = min(len(ending), len(cut))
        if not length:
            return cut
        last = shortened(whole, length, TruncationSide.LEFT)  # it has the offsets of this text
        if last.ids != ending.ids[-length:]:
            last = shortened(ending, length, TruncationSide.LEFT)
        return Encoding.merge([shortened(cut, len(cut) - length, TruncationSide.RIGHT), last], growing_offsets=False)

    def _measured(self, prompt: str, input_type: InputType) -> Frame:
        first, second = (self._read(self.message(filler, prompt, input_type)) for filler in FILLERS)
        leading, behind = _in_common(first.ids, second.ids), _in_common(first.ids[::-1], second.ids[::-1])
        return Frame(leading=leading, ending=shortened(first, behind, TruncationSide.LEFT))


def _in_common(first: list[int], second: list[int]) -> int:
    """Counts the ids at the start of both lists that are the same."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
