"""Texts to tokens, the number of tokens that a text may have, and batches of token ids. Knows no requests.

What texts, pairs, documents with spans and blocks of listwise rerankers have in common; each has a file of its own.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.limits import TEXT_LETTERS
from frontend_service.domain.requests import Truncation
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput, LimitExceeded
from shared.jobs import NO_TOKENS, RaggedTokens, TokenRanges
from shared.vectors import InputType, QueryExpansion, TruncationSide

ALONE_LETTERS = 4096
"""Most letters that are tokenised one text at a time, in the calling thread."""
CHUNK_LETTERS = 16 * 1024
"""Letters that are tokenised in one chunk: four milliseconds of a core."""
UNLIMITED = 2**31 - 1
"""Limit in tokens that no text reaches, since its bytes are limited."""

T = TypeVar("T")
Chunks = Generator[int, None, T]
"""Work in chunks of a few milliseconds: yields the number of tokens so far after each, and returns its result."""


class PanicsAs:
    """In its block, raises `error(message)` in place of a panic of the tokenizers library; other exceptions pass.

    A panic is no `Exception`: code that handles errors would not see it, and it would end the task in which it occurs.
    """

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":  # pyo3 exports no name to catch it by
            raise self._error(str(raised)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedBatch:
    """Several texts or pairs as a job needs them, laid end to end.

    `second_segments`: where the second text of a pair begins in each sequence, 0 where the model has no token types.
    `unattended_tails`: the length of each sequence's tail: expansion tokens at its end that no token attends to.
    `ranges`: the token ranges of spans; `range_of_span`: the range of each span, in the order of the request; empty: as
    they come. `token_counts`: see `Answer`; empty: those of the sequences.
    """

    tokens: RaggedTokens
    truncated: tuple[bool, ...]
    prompt_lengths: tuple[int, ...]
    second_segments: tuple[int, ...] = ()
    unattended_tails: tuple[int, ...] = ()
    ranges: TokenRanges | None = None
    range_of_span: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()

    @classmethod
    def joined(cls, batches: "Sequence[TokenizedBatch]") -> "TokenizedBatch":
        """The texts of all batches, one after the other; not for spans."""
        if len(batches) == 1:
            return batches[0]
        assert all(batch.ranges is None for batch in batches)
        return cls(
            tokens=RaggedTokens(
                ids=b"".join(batch.tokens.ids for batch in batches),
                lengths=tuple(chain.from_iterable(batch.tokens.lengths for batch in batches)),
            ),
            truncated=tuple(chain.from_iterable(batch.truncated for batch in batches)),
            prompt_lengths=tuple(chain.from_iterable(batch.prompt_lengths for batch in batches)),
            second_segments=tuple(chain.from_iterable(batch.second_segments for batch in batches)),
            unattended_tails=tuple(chain.from_iterable(batch.unattended_tails for batch in batches)),
        )

    def at(self, places: Sequence[int]) -> "TokenizedBatch":
        """The sequences at these places, in their order, with what is told of each text."""
        ids, offsets = self.tokens.ids, self.tokens.offsets
        return TokenizedBatch(
            tokens=RaggedTokens(
                ids=b"".join([ids[4 * offsets[place] : 4 * offsets[place + 1]] for place in places]),
                lengths=_at(self.tokens.lengths, places),
            ),
            truncated=_at(self.truncated, places),
            prompt_lengths=_at(self.prompt_lengths, places),
            second_segments=_at(self.second_segments, places),
            unattended_tails=_at(self.unattended_tails, places),
            ranges=None if self.ranges is None else self.ranges.select(places),
            token_counts=_at(self.token_counts, places),
        )


def _at(values: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
    """The values at these places; none where a batch has none."""
    return tuple([values[place] for place in places]) if values else ()


NOTHING = TokenizedBatch(tokens=NO_TOKENS, truncated=(), prompt_lengths=())


class TextReader:
    """Reads texts with one tokenizer. Its methods may run in several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` adds no special tokens."""
        self._tokenizer = tokenizer

    def read(self, text: str) -> Encoding:
        """Reads one text."""
        return self.encode([text])[0]

    def text_of(self, encoding: Encoding) -> str:
        """The text of tokens; a letter of which a token is missing reads as U+FFFD."""
        return self._tokenizer.decode(encoding.ids, skip_special_tokens=False)

    def encode(self, texts: Sequence[str], *, offsets: bool = False) -> list[Encoding]:
        """Reads texts at once. `offsets`: also finds where tokens lie in their text, which takes a fifth more time."""
        # Only the library's batch calls release Python's lock. With several texts they wait for the library's threads,
        # which may be busy with other requests; so few letters, as on the event loop, are encoded one text a call.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        if sum(map(len, texts)) <= ALONE_LETTERS:
            return [encode([text])[0] for text in texts]
        return encode(texts)

    def encode_chunks(self, texts: Iterable[str], *, offsets: bool = False) -> Iterator[list[Encoding]]:
        """Reads texts in order, in chunks."""
        for chunk in in_chunks(texts):
            yield self.encode(chunk, offsets=offsets)


def in_chunks(texts: Iterable[str], prompt: int = 0) -> Iterator[list[str]]:
    """Texts in order, in chunks of about CHUNK_LETTERS and at least one text. `prompt`: letters before each text."""
    chunk: list[str] = []
    chunk_letters = 0
    for text in texts:
        letters = len(text) + prompt + TEXT_LETTERS
        if chunk and chunk_letters + letters > CHUNK_LETTERS:
            yield chunk
            chunk, chunk_letters = [], 0
        chunk.append(text)
        chunk_letters += letters
    if chunk:
        yield chunk


def shortened(encoding: Encoding, length: int, side: TruncationSide) -> Encoding:
    """The encoding, or a copy that is cut at the end `side` to `length` tokens.

    `Encoding.truncate` keeps what it cuts off, in pieces of `length` tokens, and `post_process` joins each piece of one
    text with each piece of another: thousands of pieces of two long texts would make millions. So the other end is cut
    at a length that leaves a single piece, which is the result.
    """
    over = len(encoding) - length
    if over <= 0:
        return encoding
    encoding = Encoding.merge([encoding])  # a copy: it may be part of other pairs
    if over < length or not length:
        encoding.truncate(length, direction=side.name.lower())
        return encoding
    opposite = TruncationSide.RIGHT if side is TruncationSide.LEFT else TruncationSide.LEFT
    encoding.truncate(over, direction=opposite.name.lower())
    return encoding.overflowing[0]


class UntrainedTokens:
    """The tokens of one model that have no embedding: added, and never trained. Ids are looked at only where a model
    has such tokens.

    `exist`: whether it has some.
    """

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """`rows`: the number of embeddings that the model has."""
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer, self._rows = tokenizer, rows
        self.exist = tokenizer.get_vocab_size(with_added_tokens=False) > rows or max(added, default=0) >= rows

    def check(self, ids: Sequence[int], field: str, *, paired: bool = False) -> None:
        """Raises InvalidInput for a token without an embedding, naming the text `field`, or its pair, and the token."""
        if not self.exist or not ids or max(ids) < self._rows:
            return
        wrong = next(token_id for token_id in ids if token_id >= self._rows)
        token, text = self._tokenizer.id_to_token(wrong), f"{field} or its partner" if paired else field
        raise InvalidInput(
            f"{text} has the token {token!r} ({wrong}), which the tokenizer knows and the model does not: its "
            f"embeddings end at {self._rows - 1}; leave it out",
            field=field,
        )


class TokenLimits:
    """The number of tokens that a text may have: the model's limit, which a request may lower."""

    def __init__(self, card: ModelCard, added: int) -> None:
        """`added`: the number of special tokens around every text."""
        self._card = card
        self._added = added

    def resolve(self, cut: Truncation, input_type: InputType = InputType.UNSPECIFIED) -> int:
        """The most tokens that a text may have, special ones included. Raises InvalidInput, LimitExceeded."""
        if not cut.limited:
            return UNLIMITED
        if cut.max_tokens is None:
            return self._model_limit(input_type)
        self.check(cut, input_type)
        limit = min(cut.max_tokens, self._model_limit(input_type))
        least = max(1, self._added)
        if limit < least:
            raise InvalidInput(f"{cut.field} is {limit}, the special tokens alone need {least}", field=cut.field)
        return limit

    def check(self, cut: Truncation, input_type: InputType = InputType.UNSPECIFIED) -> None:
        """Raises LimitExceeded where a request would raise the model's limit. A bound may lie above it."""
        limit = self._model_limit(input_type)
        if cut.max_tokens is not None and cut.max_tokens > limit and not cut.bound:
            raise LimitExceeded(
                f"{cut.field} is {cut.max_tokens}, the model's limit is {limit}{self.reason(limit)}", field=cut.field
            )

    def reason(self, limit: int) -> str:
        """What errors add to a resolved limit: the worker's setting, where that limits the model; else nothing."""
        card = self._card
        limited = card.limited_by and limit == max(card.chunk_tokens, card.cache_tokens)
        return f" (the worker's {card.limited_by})" if limited else ""

    def too_long(self, entry: str, length: int, limit: int, remedy: str) -> InputTooLong:
        """The error for a text of `length` tokens. `entry`: what the error calls the text. `remedy`: its advice."""
        return InputTooLong(
            f"{entry} has {length} tokens, the limit is {limit}{self.reason(limit)}; {remedy}", field=entry
        )

    def _model_limit(self, input_type: InputType) -> int:
        """The model's limit for texts of this kind: late-interaction models and listwise rerankers have others for
        queries and documents."""
        sides = self._card.late_interaction or self._card.listwise
        if sides is None or input_type is InputType.UNSPECIFIED:
            return self._card.max_tokens
        return sides.query_length if input_type is InputType.QUERY else sides.document_length


class QueryExpander:
    """Fills the queries of one model up to a fixed length (ColBERT's query augmentation, arXiv:2004.12832).

    Does nothing for a model that expands none.

    `attended`: whether other tokens attend to those of an expansion; True where there is none.
    """

    def __init__(self, tokenizer: Tokenizer, card: ModelCard) -> None:
        late = card.late_interaction
        expands = late is not None and late.query_expansion is not QueryExpansion.NONE
        self._length = late.expansion_length if late and expands else 0
        self._id = late.expansion_id if late and expands else -1
        self._token = tokenizer.id_to_token(self._id) if expands else ""
        self.attended = not expands or (late is not None and late.attend_to_expansion)
        # A model without a mask token expands with the token that ends every text: one of them belongs to the text.
        self._text_ends = int(expands and tokenizer.encode("a").ids[-1:] == [self._id])

    def expand(self, encoding: Encoding) -> int:
        """Fills a query up in place, and returns the number of tokens that were added."""
        missing = max(0, self._length - len(encoding))
        if missing:
            encoding.pad(self._length, pad_id=self._id, pad_token=self._token)
        return missing

    def expansion_length(self, ids: Sequence[int]) -> int:
        """The number of tokens at the end of a query's ids that `expand` would have added.

        Only ids of exactly the length that `expand` fills up to can end with an expansion.
        """
        if len(ids) != self._length:
            return 0
        count = 0
        while count < len(ids) - 1 and ids[-1 - count] == self._id:
            count += 1
        return max(0, count - self._text_ends)
