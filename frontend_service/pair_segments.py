"""Pairs as two segments, joined by the tokenizer's own template of special tokens. Runs in threads.

Truncation is that of the reference: the longer text loses tokens first (`longest_first` of the `tokenizers` library),
from the side that the model's files name.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from frontend_service.pairs import Join, PairSequence, PairTexts, check_side
from frontend_service.requests import Cut
from shared.vectors import TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    encoding: Encoding
    truncated: bool


class Segments:
    """The form of cross-encoders."""

    def __init__(self, tokenizer: Tokenizer, framing: Tokenizer, side: TruncationSide) -> None:
        """`tokenizer` reads texts, `framing` puts special tokens around them; `side` loses where nothing is said."""
        self._tokenizer = tokenizer
        self._framing = framing
        self._side = side

    def joining(self, texts: PairTexts, prompt: str | None, limit: int) -> Join:
        """`prompt` goes before each first text."""
        special, side = self._framing.num_special_tokens_to_add(is_pair=True), texts.cut.side or self._side
        room = texts.room(limit, special)
        before = [(prompt or "") + each for each in texts.firsts]
        firsts = [self._cut(each, texts.first_cut) for each in self._tokenizer.encode_batch(before)]

        def join(start: int, stop: int) -> Iterator[tuple[int, int, PairSequence]]:
            found = self._tokenizer.encode_batch(list(texts.seconds[start:stop]))
            for column, second in enumerate((self._cut(each, texts.second_cut) for each in found), start):
                rows = range(len(firsts)) if texts.matrix else (column,)
                for row in rows:
                    yield column, row, pair(firsts[row], second, column)

        def pair(first: _Side, second: _Side, column: int) -> PairSequence:
            lengths = len(first.encoding), len(second.encoding)
            over = sum(lengths) > room
            if over:
                texts.check_cut(column, sum(lengths) + special, limit)
            kept = longest_first(*lengths, room)
            joined = self._framing.post_process(
                _shortened(first.encoding, kept[0], side), _shortened(second.encoding, kept[1], side)
            )
            types = joined.type_ids
            return texts.sequence(
                column,
                joined.ids,
                second_segment=types.index(1) if 1 in types else 0,
                truncated=over or first.truncated or second.truncated,
            )

        return join

    def _cut(self, encoding: Encoding, cut: Cut) -> _Side:
        """Within the limit of its side, which counts no special tokens."""
        limit = cut.max_tokens
        if limit is None or len(encoding) <= limit:
            return _Side(encoding=encoding, truncated=False)
        check_side(cut, len(encoding))
        return _Side(encoding=_shortened(encoding, limit, cut.side or self._side), truncated=True)


def _shortened(encoding: Encoding, length: int, side: TruncationSide) -> Encoding:
    """An encoding of at most `length` tokens: a copy, cut on one side, where it is longer."""
    if length < len(encoding):
        encoding = Encoding.merge([encoding])  # a copy: it may be part of other pairs
        encoding.truncate(length, direction=side.name.lower())
    return encoding


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens that stay of two texts when the longer one loses tokens first, until both fit into `room`."""
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room // 2 + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)
