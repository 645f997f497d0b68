"""Texts to tokens, reading no more of a long text than its limit needs. Knows no special tokens, prompts and models.

test_reader.py and test_read_whole.py compare it with its obvious twin: tokenise the whole text, then cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.limits import TEXT_LETTERS, utf8_bytes
from frontend_service.tokenizing.split_points import SplitPoints
from shared.errors import LimitExceeded
from shared.vectors import TruncationSide

TOKEN_LETTERS = 6
"""Letters that are read at first for each token that is needed: prose has four to five letters a token."""
WHOLE_FACTOR = 2
"""A text at most so many times as long as the part to read is read whole: else most of it might be read twice."""
ALONE_LETTERS = 4096
"""Most letters that are tokenised one text at a time, in the calling thread."""
SLICE_LETTERS = 16 * 1024
"""Letters that are tokenised in one slice: four milliseconds of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The tokens that are needed of each text: so many, those farthest from the end that `cut_side` cuts.

    `most_bytes`: bytes of UTF-8 that are read of a text at most; 0: any number.
    """

    tokens: int
    cut_side: TruncationSide
    most_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRead:
    """Tokens of a text: all (`whole`), or at least as many as are needed, of which only these are certain.

    `start`: letters before the part that was read; the offsets in `encoding` count from there. `refused_bytes`: the
    bytes that may be read of a text, where these do not show enough tokens of it, else 0; see `check`.
    """

    encoding: Encoding
    whole: bool = True
    start: int = 0
    refused_bytes: int = 0

    def check(self, field: str) -> None:
        """Raises LimitExceeded, naming the text `field`, where the bytes that may be read do not show enough tokens."""
        if self.refused_bytes:
            raise LimitExceeded(
                f"{field} has more bytes than the limit of {self.refused_bytes} (--max-text-bytes); such a text is cut "
                "only where a part of it within the limit, up to a space between words, has the tokens that stay",
                field=field,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Excerpt:
    """A text from `start` to `stop`, about `letters` long. Tokens before `trusted` may differ from the whole text's.

    `most`: letters of it that may be read.
    """

    text: str
    letters: int
    most: int
    start: int
    stop: int
    trusted: int = 0

    @property
    def whole(self) -> bool:
        return self.stop - self.start == len(self.text)


class PrefixReader:
    """Reads texts with one tokenizer. Its methods may run in several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` adds no special tokens."""
        self._tokenizer = tokenizer
        self._split_points = SplitPoints(tokenizer)

    def read(self, text: str, need: Need | None = None, *, offsets: bool = False) -> PrefixRead:
        """Reads one text; see `read_batches`."""
        ((read,),) = self.read_batches([text], need, offsets=offsets)
        return read

    def text_of(self, encoding: Encoding) -> str:
        """The text of tokens; a letter of which a token is missing reads as U+FFFD."""
        return self._tokenizer.decode(encoding.ids, skip_special_tokens=False)

    def read_batches(
        self, texts: Iterable[str], need: Need | None = None, *, offsets: bool = False
    ) -> Iterator[list[PrefixRead]]:
        """Reads texts in order, each as far as needed, in slices of about SLICE_LETTERS and at least one text.

        `offsets`: also finds where tokens lie in their text, which takes a fifth more time.
        """
        excerpts: list[_Excerpt] = []
        slice_letters = 0
        for text in texts:
            excerpt = self._excerpt(
                text, need, TOKEN_LETTERS * (need.tokens + 1) if need else 0, _most_letters(text, need)
            )
            letters = excerpt.stop - excerpt.start + TEXT_LETTERS
            if excerpts and slice_letters + letters > SLICE_LETTERS:
                yield self._read_excerpts(excerpts, need, offsets)
                excerpts, slice_letters = [], 0
            excerpts.append(excerpt)
            slice_letters += letters
        if excerpts:
            yield self._read_excerpts(excerpts, need, offsets)

    def _read_excerpts(self, excerpts: Sequence[_Excerpt], need: Need | None, offsets: bool) -> list[PrefixRead]:
        encodings = self._encode([excerpt.text[excerpt.start : excerpt.stop] for excerpt in excerpts], offsets)
        return [
            self._read_on(excerpt, need, encoding, offsets)
            for excerpt, encoding in zip(excerpts, encodings, strict=True)
        ]

    def _read_on(self, excerpt: _Excerpt, need: Need | None, encoding: Encoding, offsets: bool) -> PrefixRead:
        """Reads twice as much of a text, again and again, until it has the tokens that are needed.

        `encoding`: the tokens of the excerpt, which may be enough already.
        """
        while need and not excerpt.whole:
            doubtful = len(self._encode([excerpt.text[excerpt.start : excerpt.trusted]])[0]) if excerpt.trusted else 0
            if len(encoding) - doubtful >= need.tokens:
                return PrefixRead(encoding=encoding, whole=False, start=excerpt.start)
            if excerpt.letters >= excerpt.most:
                return PrefixRead(encoding=encoding, whole=False, refused_bytes=need.most_bytes)
            excerpt = self._excerpt(excerpt.text, need, 2 * excerpt.letters, excerpt.most)
            (encoding,) = self._encode([excerpt.text[excerpt.start : excerpt.stop]], offsets)
        return PrefixRead(encoding=encoding)

    def _excerpt(self, text: str, need: Need | None, letters: int, most: int) -> _Excerpt:
        """About so many letters of a text; the whole text where it is not much longer, or cannot be split.

        At most `most` of them: of a longer text that cannot be split, none.
        """
        letters = min(letters, most)
        whole = _Excerpt(text=text, letters=letters, most=most, start=0, stop=len(text))
        longer = most < len(text)
        if need is None or (not longer and len(text) <= WHOLE_FACTOR * letters):
            return whole
        unsplit = replace(whole, letters=most, stop=0) if longer else whole
        if need.cut_side is TruncationSide.RIGHT:
            stop = self._split_points.end_of_prefix(text, letters)
            return unsplit if stop is None else replace(whole, stop=stop)
        places = self._split_points.start_of_suffix(text, letters)
        return unsplit if places is None else replace(whole, start=places[0], trusted=places[1])

    def _encode(self, texts: Sequence[str], offsets: bool = False) -> list[Encoding]:
        # Only the library's batch calls release Python's lock. With several texts they wait for the library's threads,
        # which may be busy with other requests; so few letters, as on the event loop, are encoded one text a call.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        if sum(map(len, texts)) <= ALONE_LETTERS:
            return [encode([text])[0] for text in texts]
        return encode(texts)


def _most_letters(text: str, need: Need | None) -> int:
    """Letters of a text that may be read: all, or those of the part that has the most bytes."""
    if need is None or not need.most_bytes or len(text) * 4 <= need.most_bytes:
        return len(text)
    if utf8_bytes(text) <= need.most_bytes:
        return len(text)
    if need.cut_side is TruncationSide.RIGHT:
        part = text[: need.most_bytes].encode()[: need.most_bytes]
    else:
        part = text[-need.most_bytes :].encode()[-need.most_bytes :]
    return len(part.decode(errors="ignore"))
