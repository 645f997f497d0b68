"""Pairs of texts <-> token ids, for cross-encoders: two segments, or one text by a template. Runs in threads.

Truncation is that of the reference: two segments lose tokens of the longer one first (`longest_first` of the
`tokenizers` library), from the side that the model's files name; a template is cut in its document and keeps its end,
since a yes/no reranker answers after it.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from frontend_service.requests import UNPROMPTED, WHOLE, Cut, PromptChoice
from frontend_service.tokenized import Tokenized, Watch, slices
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput
from shared.ragged import RaggedTokens
from shared.vectors import TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTexts:
    """First and second texts, and which meet: every first with every second (`matrix`), else one by one.

    `cut` is for a pair as a whole, `first_cut` and `second_cut` for its sides. `entry` is what errors call a second
    text, such as `documents[{}]`. `prompt` fills a template's instruction, or goes before each first text.
    """

    firsts: Sequence[str]
    seconds: Sequence[str]
    matrix: bool
    entry: str
    cut: Cut
    first_cut: Cut = WHOLE
    second_cut: Cut = WHOLE
    prompt: PromptChoice = UNPROMPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sequence:
    ids: "array[int]"
    second_segment: int = 0
    truncated: bool = False


def tokenize(
    tokenizer: Tokenizer,
    framing: Tokenizer,
    card: ModelCard,
    texts: PairTexts,
    prompt: str | None,
    limit: int,
    watch: Watch,
) -> Tokenized:
    """All pairs, row-major, each of at most `limit` tokens. `prompt` None: the model's own, if it has one.

    `tokenizer` reads texts, `framing` puts special tokens around them.
    Raises InputTooLong where a pair is over the limit and may not be cut.
    """
    if card.pair_template:
        join = _by_template(tokenizer, card, texts, prompt, limit)
    else:
        join = _as_segments(tokenizer, framing, card.truncation_side, texts, prompt, limit)
    width = len(texts.seconds)
    done: list[_Sequence | None] = [None] * (len(texts.firsts) * width if texts.matrix else width)
    total = 0
    for start, stop in slices([len(text) for text in texts.seconds]):
        for column, row, sequence in join(start, stop):
            done[row * width + column if texts.matrix else column] = sequence
            total += len(sequence.ids)
            watch(total)  # after each: small texts may meet a long one many times
    return _packed([each for each in done if each is not None])


Join = Callable[[int, int], Iterator[tuple[int, int, _Sequence]]]
"""The pairs of a slice of second texts: number of the second, number of the first, and what they make."""


def _as_segments(
    tokenizer: Tokenizer,
    framing: Tokenizer,
    usual: TruncationSide,
    texts: PairTexts,
    prompt: str | None,
    limit: int,
) -> Join:
    """Both texts apart and then joined by the tokenizer's own template of special tokens.

    `usual`: which end is cut off where nothing is said.
    """
    special, side = framing.num_special_tokens_to_add(is_pair=True), texts.cut.side or usual
    room = _room(limit, special, texts)
    before = [(prompt or "") + each for each in texts.firsts]
    firsts = [_cut(each, texts.first_cut, usual) for each in tokenizer.encode_batch(before)]

    def join(start: int, stop: int) -> Iterator[tuple[int, int, _Sequence]]:
        found = tokenizer.encode_batch(list(texts.seconds[start:stop]))
        for column, second in enumerate((_cut(each, texts.second_cut, usual) for each in found), start):
            rows = range(len(firsts)) if texts.matrix else (column,)
            for row in rows:
                yield column, row, pair(firsts[row], second, column)

    def pair(first: "_Side", second: "_Side", column: int) -> _Sequence:
        lengths = len(first.encoding), len(second.encoding)
        over = sum(lengths) > room
        if over:
            _check_cut(texts, column, sum(lengths) + special, limit)
        kept = longest_first(*lengths, room)
        joined = framing.post_process(
            _shortened(first.encoding, kept[0], side), _shortened(second.encoding, kept[1], side)
        )
        types = joined.type_ids
        return _Sequence(
            ids=_some(texts, column, joined.ids),
            second_segment=types.index(1) if 1 in types else 0,
            truncated=over or first.truncated or second.truncated,
        )

    return join


def _by_template(tokenizer: Tokenizer, card: ModelCard, texts: PairTexts, prompt: str | None, limit: int) -> Join:
    """One text around both; its end stays whatever is cut."""
    before, between, after = _parts(card, prompt)
    ending = tokenizer.encode(after, add_special_tokens=False).ids
    room = _room(limit, len(ending), texts)
    firsts = [_cut_text(tokenizer, each, texts.first_cut) for each in texts.firsts]

    def join(start: int, stop: int) -> Iterator[tuple[int, int, _Sequence]]:
        seconds = [_cut_text(tokenizer, each, texts.second_cut) for each in texts.seconds[start:stop]]
        for column, (second, second_cut) in enumerate(seconds, start):
            rows = range(len(firsts)) if texts.matrix else (column,)
            for row in rows:
                first, first_cut = firsts[row]
                ids = tokenizer.encode(before + first + between + second + after, add_special_tokens=False).ids
                over = len(ids) > limit
                if over:
                    _check_cut(texts, column, len(ids), limit)
                    ids = ids[:room] + ending
                yield column, row, _Sequence(ids=_some(texts, column, ids), truncated=over or first_cut or second_cut)

    return join


def _room(limit: int, fixed: int, texts: PairTexts) -> int:
    """Tokens that are left beside those that every pair has."""
    if limit <= fixed:
        raise InvalidInput(
            f"{texts.cut.field} is {limit}, what every pair has alone needs {fixed}", field=texts.cut.field
        )
    return limit - fixed


def _parts(card: ModelCard, instruction: str | None) -> tuple[str, str, str]:
    """The template before the query, between, and after the document."""
    if not instruction:
        template = card.pair_template
    elif not card.instructed_pair_template:
        raise InvalidInput("the model's template has no place for an instruction", field="instruction")
    else:
        template = card.instructed_pair_template
    before, _, rest = template.partition("{query}")
    between, _, after = rest.partition("{document}")
    filled = [part.replace("{instruction}", instruction or "") for part in (before, between, after)]
    return filled[0], filled[1], filled[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    encoding: Encoding
    truncated: bool


def _cut(encoding: Encoding, cut: Cut, usual: TruncationSide) -> _Side:
    """Within the limit of its side, which counts no special tokens."""
    limit = cut.max_tokens
    if limit is None or len(encoding) <= limit:
        return _Side(encoding=encoding, truncated=False)
    _check_side(cut, len(encoding))
    return _Side(encoding=_shortened(encoding, limit, cut.side or usual), truncated=True)


def _cut_text(tokenizer: Tokenizer, text: str, cut: Cut) -> tuple[str, bool]:
    """The same for a text, cut where its last token ends."""
    if cut.max_tokens is None:
        return text, False
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if len(encoding) <= cut.max_tokens:
        return text, False
    _check_side(cut, len(encoding))
    return text[: encoding.offsets[cut.max_tokens - 1][1]], True


def _check_side(cut: Cut, tokens: int) -> None:
    if not cut.truncate:
        raise InputTooLong(
            f"a text has {tokens} tokens, {cut.field} is {cut.max_tokens}; truncate would cut it", field=cut.field
        )


def _check_cut(texts: PairTexts, column: int, tokens: int, limit: int) -> None:
    if not texts.cut.truncate:
        field = texts.entry.format(column)
        raise InputTooLong(
            f"{field} and its partner have {tokens} tokens together, the limit is {limit}; truncate would cut them",
            field=field,
        )


def _some(texts: PairTexts, column: int, ids: Sequence[int]) -> "array[int]":
    """At least one token, 4 bytes each."""
    if not ids:
        field = texts.entry.format(column)
        raise InvalidInput(f"{field} and its partner have no tokens, not even special ones", field=field)
    return array("i", ids)


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


def _packed(sequences: Sequence[_Sequence]) -> Tokenized:
    flat = array("i")
    for each in sequences:
        flat.extend(each.ids)
    return Tokenized(
        tokens=RaggedTokens.packed(flat, [len(each.ids) for each in sequences]),
        truncated=tuple(each.truncated for each in sequences),
        prompt_lengths=(0,) * len(sequences),
        second_segments=tuple(each.second_segment for each in sequences),
    )
