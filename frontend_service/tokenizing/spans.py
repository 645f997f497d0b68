"""Documents to token ids with the token ranges of their spans; a long document in windows. Knows no requests.

A token belongs to a span that has its last character, by the offsets of the tokenizer. So of spans that lie end to end
every token belongs to one, whether or not a tokenizer counts the space before a word as a part of it.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.tokens import (
    Chunks,
    TextReader,
    TokenizedBatch,
    TokenLimits,
    UntrainedTokens,
)
from shared.errors import InputTooLong, InvalidInput, LimitExceeded
from shared.jobs import RANGE_TIMES, RaggedTokens, TokenRanges
from shared.vectors import InputType

CHUNK_TOKENS = 64 * 1024
"""Tokens of windows that are made in one chunk: three milliseconds."""


TokenRange = tuple[int, int]
"""The first token, and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The tokens `start` to `stop` - 1 of a document, and the numbers of the spans that are pooled of them."""

    start: int
    stop: int
    spans: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text and its spans, in characters of the text without a prompt.

    `entry` is what errors call the text, and `span_entry` one of its spans: `texts[{}]`. `chunks`: the spans lie end to
    end, and special tokens and a prompt belong to the first and the last of them; otherwise they belong to none.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    entry: str
    span_entry: str
    chunks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """How many special tokens a model puts around every text: `leading` before it, `added` in all."""

    leading: int
    added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How documents are read: with `prompt` before each, by itself `left_out` tokens that are not pooled; up to `limit`
    tokens, or in windows that overlap by `overlap`. `reason`: what errors say of the limit."""

    prompt: str
    left_out: int
    limit: int
    reason: str
    overlap: int | None


@dataclass(slots=True)
class _Sequences:
    """The sequences of all documents so far, and their token ranges."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    lengths: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ranges: list[TokenRange] = field(default_factory=list)
    range_of_span: list[int] = field(default_factory=list)
    token_counts: list[int] = field(default_factory=list)

    def batch(self) -> TokenizedBatch:
        """All of them as a job needs them."""
        starts, stops = zip(*self.ranges, strict=True)
        in_order = self.range_of_span == list(range(len(self.ranges)))
        return TokenizedBatch(
            tokens=RaggedTokens.packed(self.ids, self.lengths),
            truncated=(False,) * len(self.token_counts),
            prompt_lengths=tuple(self.prompt_lengths),
            ranges=TokenRanges(counts=tuple(self.counts), starts=starts, stops=stops),
            range_of_span=() if in_order else tuple(self.range_of_span),
            token_counts=tuple(self.token_counts),
        )


class DocumentTokenizer:
    """Tokenises the documents of one model. Its methods may run in several threads at once."""

    def __init__(
        self,
        reader: TextReader,
        framing: Tokenizer,
        special: SpecialTokens,
        limits: TokenLimits,
        untrained: UntrainedTokens,
        left_out: Callable[[str], int],
    ) -> None:
        """`framing` puts special tokens around an encoding. `left_out`: how many tokens of a prompt are not pooled."""
        self._reader, self._framing, self._special = reader, framing, special
        self._limits, self._untrained, self._left_out = limits, untrained, left_out

    def tokenize(
        self, documents: Sequence[Document], prompt: str, cut: Truncation, input_type: InputType, overlap: int | None
    ) -> Chunks[TokenizedBatch]:
        """Tokenises documents, some in each chunk; nothing of one is ever cut.

        `overlap`: how many tokens the windows of a document over the limit share; None: it raises InputTooLong. Raises
        InvalidInput for a span without a token, InputTooLong for one that fits into no window, and LimitExceeded for
        spans that have the tokens of their text too often.
        """
        limit = self._limits.resolve(cut, input_type)
        reading = _Reading(
            prompt=prompt,
            left_out=self._left_out(prompt),
            limit=limit,
            reason=self._limits.reason(limit),
            overlap=overlap,
        )
        sequences, waiting = _Sequences(), iter(documents)
        texts = (prompt + document.text for document in documents)
        for encodings in self._reader.encode_chunks(texts, offsets=True):
            for encoding in encodings:
                yield from self._add(sequences, next(waiting), encoding, reading)
            yield len(sequences.ids)
        return sequences.batch()

    def _add(self, sequences: _Sequences, document: Document, encoding: Encoding, reading: _Reading) -> Iterator[int]:
        """Adds the sequence of a document, or those of its windows, some in each chunk.

        Windows may have the tokens of a document many times over. So their tokens are told before any of them is made.
        """
        encoding, entry, limit = self._framing.post_process(encoding), document.entry, reading.limit
        length = len(encoding)
        if length > limit and reading.overlap is None:
            raise self._limits.too_long(entry, length, limit, "window_overlap would read it in windows")
        ids = encoding.ids
        self._untrained.check(ids, entry)
        prompt, *spans = _token_ranges(encoding, document, len(reading.prompt), self._special)
        begin, end = prompt[1], length - (self._special.added - self._special.leading)
        document_windows = [Window(start=begin, stop=end, spans=tuple(range(len(spans))))]
        if length > limit:
            document_windows = self._windows(spans, (begin, end), document, reading)
            around = length - (end - begin)
            yield len(sequences.ids) + sum(around + window.stop - window.start for window in document_windows)
        ranges: dict[int, int] = {}  # by span, the place of its range
        yielded = len(sequences.ids)
        for window in document_windows:
            shift = window.start - begin
            chosen = [(spans[number][0] - shift, spans[number][1] - shift) for number in window.spans]
            window_ids = ids[:begin] + ids[window.start : window.stop] + ids[end:]
            # Before a text a prompt may have fewer tokens than by itself. The first chunk begins with the prompt, and
            # leaves out as many tokens as a text behind that prompt does; all other ranges begin behind the prompt.
            left_out = min(reading.left_out, begin)
            if document.chunks:
                chosen = _with_ends(chosen, window, len(spans), len(window_ids))
                left_out = reading.left_out if window.spans[0] == 0 else left_out
            _check(chosen, window, len(window_ids), document, left_out)
            ranges |= {number: place for place, number in enumerate(window.spans, len(sequences.ranges))}
            sequences.ids.extend(window_ids)
            sequences.lengths.append(len(window_ids))
            sequences.prompt_lengths.append(left_out)
            sequences.counts.append(len(chosen))
            sequences.ranges += chosen
            if len(sequences.ids) - yielded >= CHUNK_TOKENS:
                yield (yielded := len(sequences.ids))
        sequences.range_of_span += [ranges[number] for number in range(len(spans))]
        bounds = [sequences.ranges[ranges[number]] for number in range(len(spans))]
        sequences.token_counts += [stop - start for start, stop in bounds] if document.chunks else [length]

    def _windows(
        self, spans: Sequence[TokenRange], tokens: TokenRange, document: Document, reading: _Reading
    ) -> list[Window]:
        """The windows over the tokens of a document that is over the limit, each with the prompt before it."""
        assert reading.overlap is not None
        around = tokens[0] + self._special.added - self._special.leading
        free_tokens = reading.limit - around
        if free_tokens < 1:
            why = f"{document.entry}: the prompt fills the limit of {reading.limit} tokens"
            raise InvalidInput(f"{why}, nothing is left for a window", field=document.entry)
        if reading.overlap >= free_tokens:
            raise InvalidInput(
                f"window_overlap is {reading.overlap}, a window has room for {free_tokens} tokens of a text",
                field="window_overlap",
            )
        for number, (start, stop) in enumerate(spans):
            if stop - start > free_tokens:
                entry = document.span_entry.format(number)
                why = f"has {stop - start} tokens, a window has room for {free_tokens}"
                raise InputTooLong(f"{_name(document, number)} {why}{reading.reason}", field=entry)
        return list(windows(spans, tokens, free_tokens, reading.overlap))


def _token_ranges(encoding: Encoding, document: Document, prompt: int, special: SpecialTokens) -> list[TokenRange]:
    """The tokens of the prompt, which has so many characters, with the special ones before it; then those of each span.

    Raises InvalidInput for a span without a token.
    """
    leading, stop = special.leading, len(encoding) - (special.added - special.leading)
    offsets = np.array(encoding.offsets[leading:stop], dtype=np.int64).reshape(-1, 2)
    # A token of no characters counts as one. A normaliser that moves letters must not move tokens out of their order.
    last = np.maximum.accumulate(np.maximum(offsets[:, 0], offsets[:, 1] - 1))
    places = leading + np.searchsorted(last, prompt + np.array(document.spans, dtype=np.int64))
    for number, (first, behind) in enumerate(places.tolist()):
        if first == behind:
            why = "has no token: no token has its last character there"
            raise InvalidInput(f"{_name(document, number)} {why}", field=document.span_entry.format(number))
    return [(0, leading + int(np.searchsorted(last, prompt))), *map(tuple, places.tolist())]


def _with_ends(ranges: Sequence[TokenRange], window: Window, count: int, length: int) -> list[TokenRange]:
    """The ranges of chunks, where the first of all `count` has what is before it, and the last what is behind it."""
    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    if window.spans[0] == 0:
        starts[0] = 0
    if window.spans[-1] == count - 1:
        stops[-1] = length
    return list(zip(starts, stops, strict=True))


def _check(ranges: Sequence[TokenRange], window: Window, length: int, document: Document, left_out: int) -> None:
    """Raises InvalidInput for a span of a prompt alone, which is not pooled, and LimitExceeded for too much overlap."""
    for number, (_, stop) in zip(window.spans, ranges, strict=True):
        if stop <= left_out:
            why = "has only tokens of the prompt, which this model leaves out of pooling"
            raise InvalidInput(f"{_name(document, number)} {why}", field=document.span_entry.format(number))
    total = sum(stop - start for start, stop in ranges)
    if total > RANGE_TIMES * length:
        entry = document.span_entry.format(window.spans[-1])
        raise LimitExceeded(
            f"the spans of {document.entry} have {total} tokens together, the limit is {RANGE_TIMES} times its own "
            f"{length}",
            field=entry,
        )


def _name(document: Document, number: int) -> str:
    """What a message calls a span."""
    entry, (start, end) = document.span_entry.format(number), document.spans[number]
    return entry if document.chunks else f"{entry}, characters {start} to {end},"


def windows(spans: Sequence[TokenRange], document: TokenRange, most: int, overlap: int) -> Iterator[Window]:
    """Windows over a document that is longer than its model reads at once: long late chunking (arXiv:2409.04701).

    The paper cuts windows at fixed places, so a chunk may be pooled of rows that two passes gave. Here every span is
    pooled of one window, which has it as a whole.

    Windows are of at most `most` tokens over the tokens `document`, such that every span is in one of them.

    Spans are taken by their starts, and no span is longer than `most`. A window begins `overlap` tokens before the
    first span that the windows before it do not have, or later where that span would not fit; the first window begins
    with the document if that span fits.
    """
    first, end = document
    order = sorted(range(len(spans)), key=spans.__getitem__)
    place = 0
    while place < len(order):
        start, stop = spans[order[place]]
        begin = first if not place and stop - first <= most else max(first, start - overlap, stop - most)
        window_stop = min(begin + most, end)
        after = place
        while after < len(order) and spans[order[after]][1] <= window_stop:
            after += 1
        yield Window(start=begin, stop=window_stop, spans=tuple(order[place:after]))
        place = after
