"""Pairs of texts to token ids, in the form that a model has: two segments, or one text by a template around both.

Segments are joined by the tokenizer's own template of special tokens, and cut as the `tokenizers` library does it
(`longest_first`): the longer text loses tokens first, at the end that the model's files name. A text in a template is
cut in its document and keeps the template's end, since a yes/no reranker answers after it.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import DEFAULT_PROMPT, DEFAULT_TRUNCATION, PromptChoice, Truncation
from frontend_service.tokenizing.tokens import Chunks, TextReader, TokenizedBatch, UntrainedTokens, shortened
from shared.card import PLACE, SPLIT, ModelCard
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import RaggedTokens
from shared.vectors import TruncationSide

CHUNK_TOKENS = 4096
"""Tokens of pairs that are made in one chunk: a long text may be paired with many small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTexts:
    """First and second texts, paired each with each (`matrix`) or one by one.

    `cut` is for a pair as a whole, `first_cut` and `second_cut` are for either text alone. `entry` is what errors call
    a second text, such as `documents[{}]`, `first_entry` a first one. `prompt` fills a template's instruction, or goes
    before each first text. `limit_reason`: what errors add to the limit of a pair, see `TokenLimits.reason`.
    `first_numbers` and `numbers`: the number that each text has in its request; None where these are all texts of it.
    """

    firsts: Sequence[str]
    seconds: Sequence[str]
    matrix: bool
    entry: str
    cut: Truncation
    first_cut: Truncation = DEFAULT_TRUNCATION
    second_cut: Truncation = DEFAULT_TRUNCATION
    first_entry: str = "queries[{}]"
    prompt: PromptChoice = DEFAULT_PROMPT
    limit_reason: str = ""
    first_numbers: Sequence[int] | None = None
    numbers: Sequence[int] | None = None

    def first_name(self, row: int) -> str:
        """What errors call a first text."""
        return self.first_entry.format(row if self.first_numbers is None else self.first_numbers[row])

    def name(self, column: int) -> str:
        """What errors call a second text."""
        return self.entry.format(column if self.numbers is None else self.numbers[column])

    def free_tokens(self, limit: int, fixed: int) -> int:
        """Tokens that the limit leaves to the texts, beside the `fixed` ones of every pair. Raises InvalidInput."""
        if limit <= fixed:
            field = self.cut.field if self.cut.max_tokens == limit else ""
            name = field or "the model's limit"
            raise InvalidInput(
                f"{name} is {limit}{self.limit_reason}, what every pair has alone needs {fixed}", field=field
            )
        return limit - fixed

    def check_cut(self, column: int, tokens: int, limit: int) -> None:
        """Raises InputTooLong, naming the second text `column`, where a pair over the limit may not be cut."""
        if not self.cut.truncate:
            field = self.name(column)
            raise InputTooLong(
                f"{field} and its partner have {tokens} tokens together, the limit is "
                f"{limit}{self.limit_reason}; truncate would cut them",
                field=field,
            )

    def sequence(self, column: int, ids: Sequence[int], *, second_segment: int = 0, truncated: bool) -> "PairSequence":
        """Makes the pair of the second text `column`. Raises InvalidInput where it has no tokens at all."""
        if not ids:
            field = self.name(column)
            raise InvalidInput(f"{field} and its partner have no tokens, not even special ones", field=field)
        return PairSequence(ids=array("i", ids), second_segment=second_segment, truncated=truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSequence:
    """Token ids of a pair, 4 bytes each. The second text begins at `second_segment`, 0 without token types."""

    ids: "array[int]"
    second_segment: int
    truncated: bool


JoinedPairs = Iterator[tuple[int, int, PairSequence] | None]
"""Pairs, each as the number of its second text, the number of its first text, and its tokens; None between chunks."""


def check_text(cut: Truncation, limit: int, tokens: int, field: str) -> None:
    """Raises InputTooLong, naming the text `field`, where it is over its own `limit` and may not be cut."""
    if not cut.truncate:
        raise InputTooLong(f"{field} has {tokens} tokens, {cut.field} is {limit}; truncate would cut it", field=field)


class PairTokenizer:
    """Tokenises pairs for one model. Its methods may run in several threads at once."""

    def __init__(self, reader: TextReader, framing: Tokenizer, card: ModelCard, untrained: UntrainedTokens) -> None:
        """`reader` reads texts, `framing` puts special tokens around them."""
        self._untrained = untrained
        segments = SegmentPairs(reader, framing, card.truncation_side)
        self._form: SegmentPairs | TemplatePairs = TemplatePairs(reader, card) if card.pair_template else segments

    def tokenize(self, texts: PairTexts, prompt: str | None, limit: int) -> Chunks[TokenizedBatch]:
        """Tokenises all pairs, row-major, each to at most `limit` tokens. `prompt` None: the model's default, if any.

        Raises InputTooLong where a pair is over the limit and may not be cut.
        """
        width = len(texts.seconds)
        sequences: list[PairSequence | None] = [None] * (len(texts.firsts) * width if texts.matrix else width)
        total = yielded = 0
        for pair in self._form.join(texts, prompt, limit):
            if pair is None:
                yield total
                continue
            column, row, sequence = pair
            self._untrained.check(sequence.ids, texts.name(column), paired=True)
            sequences[row * width + column if texts.matrix else column] = sequence
            total += len(sequence.ids)
            if total - yielded >= CHUNK_TOKENS:
                yield (yielded := total)
        return _packed([sequence for sequence in sequences if sequence is not None])


def _packed(sequences: Sequence[PairSequence]) -> TokenizedBatch:
    flat = array("i")
    for sequence in sequences:
        flat.extend(sequence.ids)
    return TokenizedBatch(
        tokens=RaggedTokens.packed(flat, [len(sequence.ids) for sequence in sequences]),
        truncated=tuple(sequence.truncated for sequence in sequences),
        prompt_lengths=(0,) * len(sequences),
        second_segments=tuple(sequence.second_segment for sequence in sequences),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairText:
    """A text of a pair, within its own limit: `length` tokens, of which `encoding` has those that a pair may keep."""

    encoding: Encoding
    length: int
    truncated: bool


class SegmentPairs:
    """Makes pairs in the form of cross-encoders."""

    def __init__(self, reader: TextReader, framing: Tokenizer, side: TruncationSide) -> None:
        """`framing` puts special tokens around what `reader` reads. `side`: the end that is cut by default."""
        self._reader = reader
        self._framing = framing
        self._side = side

    def join(self, texts: PairTexts, prompt: str | None, limit: int) -> JoinedPairs:
        """Makes all pairs, each of at most `limit` tokens. `prompt` goes before each first text."""
        special, side = self._framing.num_special_tokens_to_add(is_pair=True), texts.cut.side or self._side
        free_tokens = texts.free_tokens(limit, special)
        firsts: list[_PairText] = []
        for encodings in self._reader.encode_chunks((prompt or "") + first for first in texts.firsts):
            firsts += [
                self._fit_text(encoding, texts.first_cut, texts.first_name(row), free_tokens, side)
                for row, encoding in enumerate(encodings, len(firsts))
            ]
            yield None

        def pair(first: _PairText, second: _PairText, column: int) -> PairSequence:
            lengths = first.length, second.length
            over = sum(lengths) > free_tokens
            if over:
                texts.check_cut(column, sum(lengths) + special, limit)
            first_length, second_length = longest_first(*lengths, free_tokens)
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

        column = 0
        for encodings in self._reader.encode_chunks(texts.seconds):
            for encoding in encodings:
                second = self._fit_text(encoding, texts.second_cut, texts.name(column), free_tokens, side)
                for row in range(len(firsts)) if texts.matrix else (column,):
                    yield column, row, pair(firsts[row], second, column)
                column += 1
            yield None

    def _fit_text(
        self, encoding: Encoding, cut: Truncation, field: str, free_tokens: int, side: TruncationSide
    ) -> _PairText:
        """Cuts a text to its own limit, which counts no special tokens, then at the end `side` to `free_tokens`.

        Raises InputTooLong, naming the text `field`.
        """
        limit = cut.max_tokens
        truncated = limit is not None and len(encoding) > limit
        if limit is not None and truncated:
            check_text(cut, limit, len(encoding), field)
            encoding = shortened(encoding, limit, cut.side or self._side)
        return _PairText(encoding=shortened(encoding, free_tokens, side), length=len(encoding), truncated=truncated)


def longest_first(first: int, second: int, limit: int) -> tuple[int, int]:
    """The tokens that two texts keep when the longer one loses tokens first, until both have `limit` together."""
    if first + second <= limit:
        return first, second
    shorter, longer = sorted((first, second))
    longer = shorter if shorter > limit else max(shorter, limit - shorter)
    if shorter + longer > limit:
        shorter, longer = limit // 2, limit // 2 + limit % 2
    return (shorter, longer) if first <= second else (longer, shorter)


class TemplatePairs:
    """Makes pairs in the form of yes/no rerankers."""

    def __init__(self, reader: TextReader, card: ModelCard) -> None:
        self._reader = reader
        self._card = card

    def join(self, texts: PairTexts, prompt: str | None, limit: int) -> JoinedPairs:
        """Makes all pairs, each of at most `limit` tokens. `prompt`: the instruction for the template.

        Raises InvalidInput where the template has no place for it, or the beginning of the texts is to be cut off.
        """
        _check_cut_sides(texts)
        template, instruction = self._template(prompt), prompt or ""
        parts = template.split(SPLIT)
        literal = {part: self._reader.read(part).ids for part in parts if not PLACE.search(part)}
        ending = [
            token
            for part in template.partition("{document}")[2].split(SPLIT)
            for token in self._reader.read(_filled(part, instruction=instruction)).ids
        ]
        free_tokens = texts.free_tokens(limit, len(ending))
        firsts: list[tuple[str, bool]] = []
        for chunk in self._within_own_limit(texts.firsts, texts.first_cut, texts.first_name, limit):
            firsts += chunk
            yield None
        column = 0
        for chunk in self._within_own_limit(texts.seconds, texts.second_cut, texts.name, limit):
            for second, second_is_cut in chunk:
                for row in range(len(firsts)) if texts.matrix else (column,):
                    first, first_is_cut = firsts[row]
                    ids: list[int] = []
                    for part in parts:
                        if part in literal:
                            ids += literal[part]
                        else:
                            text = _filled(part, instruction=instruction, query=first, document=second)
                            ids += self._reader.read(text).ids
                    over = len(ids) > limit
                    if over:
                        texts.check_cut(column, len(ids), limit)
                        ids = ids[:free_tokens] + ending
                    yield column, row, texts.sequence(column, ids, truncated=over or first_is_cut or second_is_cut)
                column += 1
            yield None

    def _template(self, instruction: str | None) -> str:
        """The template for pairs with this instruction or with none."""
        if not instruction:
            return self._card.pair_template
        if not self._card.instructed_pair_template:
            raise InvalidInput("the model's template has no place for an instruction", field="instruction")
        return self._card.instructed_pair_template

    def _within_own_limit(
        self, texts: Sequence[str], cut: Truncation, name: Callable[[int], str], pair_limit: int
    ) -> Iterator[list[tuple[str, bool]]]:
        """First or second texts within their own limit, each with whether it was cut; some in each chunk.

        A text is cut where the last token that stays ends. `name`: what errors call one of them. Their own limit has
        no effect above `pair_limit`.
        """
        limit = cut.max_tokens
        if limit is None or limit >= pair_limit:
            yield [(text, False) for text in texts]
            return
        number = 0
        for encodings in self._reader.encode_chunks(texts, offsets=True):
            chunk = []
            for encoding in encodings:
                text, over = texts[number], len(encoding) > limit
                if over:
                    check_text(cut, limit, len(encoding), name(number))
                chunk.append((text[: encoding.offsets[limit - 1][1]] if over else text, over))
                number += 1
            yield chunk


def _filled(part: str, **texts: str) -> str:
    """Puts texts into a part of a template; what stands in braces inside of a text stays as it is."""
    return PLACE.sub(lambda place: texts.get(place[1], place[0]), part)


def _check_cut_sides(texts: PairTexts) -> None:
    """Raises InvalidInput where the beginning of a text is to be cut off."""
    if TruncationSide.LEFT in (texts.cut.side, texts.first_cut.side, texts.second_cut.side):
        raise InvalidInput(
            "truncation_side is LEFT; the model's template is cut at the end of its document", field="truncation_side"
        )
