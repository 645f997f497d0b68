"""Pairs as two segments, joined by the tokenizer's own template of special tokens. Works in slices.

Truncation is that of the `tokenizers` library (`longest_first`): the longer text loses tokens first, at the end that
the model's files name.
"""

from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.pairs.pairs import JoinedPairs, PairSequence, PairTexts, check_text
from frontend_service.tokenizing.prefix import Need, PrefixRead, PrefixReader
from frontend_service.tokenizing.token_limits import UNLIMITED
from frontend_service.tokenizing.truncation import shortened
from shared.vectors import TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairText:
    """A text of a pair, within its own limit: `length` tokens, of which `encoding` has those that a pair may keep.

    `whole`: whether it has exactly `length` tokens, apart from those over its own limit.
    """

    encoding: Encoding
    length: int
    truncated: bool
    whole: bool


class SegmentPairs:
    """Makes pairs in the form of cross-encoders."""

    def __init__(self, reader: PrefixReader, framing: Tokenizer, side: TruncationSide) -> None:
        """`framing` puts special tokens around what `reader` reads. `side`: the end that is cut by default."""
        self._reader = reader
        self._framing = framing
        self._side = side

    def join(self, texts: PairTexts, prompt: str | None, limit: int) -> JoinedPairs:
        """Makes all pairs, each of at most `limit` tokens. `prompt` goes before each first text."""
        special, side = self._framing.num_special_tokens_to_add(is_pair=True), texts.cut.side or self._side
        room = texts.room(limit, special)
        firsts: list[_PairText] = []
        # Of two texts that together exceed an odd room, the longer one keeps one token more: only then must all tokens
        # be counted.
        need = self._need(texts.first_cut, room, side, counted=room % 2 == 1)
        for reads in self._reader.read_batches(((prompt or "") + first for first in texts.firsts), need):
            firsts += [
                self._fit_text(read, texts.first_cut, texts.first_entry.format(row), room, side)
                for row, read in enumerate(reads, len(firsts))
            ]
            yield None

        def pair(first: _PairText, second: _PairText, column: int) -> PairSequence:
            lengths = first.length, second.length
            over = sum(lengths) > room
            if over:
                texts.check_cut(column, sum(lengths) + special, limit, whole=first.whole and second.whole)
            first_length, second_length = longest_first(*lengths, room)
            joined = self._framing.post_process(
                shortened(first.encoding, first_length, side), shortened(second.encoding, second_length, side)
            )
            types = joined.type_ids
            return texts.sequence(
                column,
                joined.ids,
                second_segment=types.index(1) if 1 in types else 0,
                truncated=over or first.truncated or second.truncated,
            )

        over_alone = any(first.length > room for first in firsts)
        need, column = self._need(texts.second_cut, room, side, counted=room % 2 == 1 and over_alone), 0
        for reads in self._reader.read_batches(texts.seconds, need):
            for read in reads:
                second = self._fit_text(read, texts.second_cut, texts.entry.format(column), room, side)
                for row in range(len(firsts)) if texts.matrix else (column,):
                    yield column, row, pair(firsts[row], second, column)
                column += 1
            yield None

    def _need(self, cut: Truncation, room: int, side: TruncationSide, *, counted: bool) -> Need:
        """The tokens to read of a text: one more than may stay, or all where they must be `counted`.

        Its own limit has no effect above the `room`, unless that limit cuts the other end of the text.
        """
        limit, own_side = cut.max_tokens, cut.side or self._side
        if limit is not None and (limit <= room or counted or own_side is not side):
            return Need(tokens=limit + 1, cut_side=own_side, most_bytes=cut.text_bytes)
        return Need(tokens=UNLIMITED if counted else room + 1, cut_side=side, most_bytes=cut.text_bytes)

    def _fit_text(self, read: PrefixRead, cut: Truncation, field: str, room: int, side: TruncationSide) -> _PairText:
        """Cuts a text to its own limit, which counts no special tokens, then at the end `side` to the `room`.

        Raises InputTooLong, naming the text `field`.
        """
        read.check(field)
        encoding, limit, whole = read.encoding, cut.max_tokens, read.whole
        truncated = limit is not None and len(encoding) > limit
        if limit is not None and truncated:
            check_text(cut, limit, len(encoding), field, whole=whole)
            encoding, whole = shortened(encoding, limit, cut.side or self._side), True
        return _PairText(
            encoding=shortened(encoding, room, side), length=len(encoding), truncated=truncated, whole=whole
        )


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """The tokens that two texts keep when the longer one loses tokens first, until both fit into `room`."""
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room // 2 + room % 2
    return (shorter, longer) if first <= second else (longer, shorter)
