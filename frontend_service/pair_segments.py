"""Pairs as two segments, joined by the tokenizer's own template of special tokens. Works in slices.

Truncation is that of the reference: the longer text loses tokens first (`longest_first` of the `tokenizers` library),
from the side that the model's files name.
"""

from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from frontend_service.pairs import Joined, PairSequence, PairTexts, check_side
from frontend_service.reader import Need, Read, Reader
from frontend_service.requests import Cut
from shared.vectors import TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A text within the limit of its side. `whole`: it has no more tokens than `encoding`, but for those cut off."""

    encoding: Encoding
    truncated: bool
    whole: bool


class Segments:
    """The form of cross-encoders."""

    def __init__(self, reader: Reader, framing: Tokenizer, side: TruncationSide) -> None:
        """`framing` puts special tokens around what `reader` reads; `side` loses where nothing is said."""
        self._reader = reader
        self._framing = framing
        self._side = side

    def joined(self, texts: PairTexts, prompt: str | None, limit: int) -> Joined:
        """`prompt` goes before each first text."""
        special, side = self._framing.num_special_tokens_to_add(is_pair=True), texts.cut.side or self._side
        room = texts.room(limit, special)
        firsts: list[_Side] = []
        # Which of two texts over an odd room keeps one token more depends on which is longer: only there, all counts.
        need = self._need(texts.first_cut, room, side, counted=room % 2 == 1)
        for reads in self._reader.batches(((prompt or "") + each for each in texts.firsts), need):
            firsts += [self._cut(read, texts.first_cut) for read in reads]
            yield None

        def pair(first: _Side, second: _Side, column: int) -> PairSequence:
            lengths = len(first.encoding), len(second.encoding)
            over = sum(lengths) > room
            if over:
                texts.check_cut(column, sum(lengths) + special, limit, whole=first.whole and second.whole)
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

        over_alone = any(len(first.encoding) > room for first in firsts)
        need, column = self._need(texts.second_cut, room, side, counted=room % 2 == 1 and over_alone), 0
        for reads in self._reader.batches(texts.seconds, need):
            for read in reads:
                second = self._cut(read, texts.second_cut)
                for row in range(len(firsts)) if texts.matrix else (column,):
                    yield column, row, pair(firsts[row], second, column)
                column += 1
            yield None

    def _need(self, cut: Cut, room: int, side: TruncationSide, *, counted: bool) -> Need | None:
        """One token more than may stay of a text; all where they are to be `counted`."""
        if cut.max_tokens is not None:
            return Need(tokens=cut.max_tokens + 1, cut=cut.side or self._side)
        return None if counted else Need(tokens=room + 1, cut=side)

    def _cut(self, read: Read, cut: Cut) -> _Side:
        """Within the limit of its side, which counts no special tokens."""
        limit, length = cut.max_tokens, len(read.encoding)
        if limit is None or length <= limit:
            return _Side(encoding=read.encoding, truncated=False, whole=read.whole)
        check_side(cut, limit, length, whole=read.whole)
        shortened = _shortened(read.encoding, limit, cut.side or self._side)
        return _Side(encoding=shortened, truncated=True, whole=True)


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
