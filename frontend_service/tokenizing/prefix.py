"""Texts -> tokens without special ones, of each text no more than a limit lets one see. Knows no prompts and no model.

`read` is held against the obvious way, tokenising all and cutting, in test_reader.py and test_read_whole.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.limits import TEXT_LETTERS
from frontend_service.tokenizing.split_points import Parting
from shared.vectors import TruncationSide

TOKEN_LETTERS = 6
"""Letters that are read at first for each token that is needed: prose has four to five a token."""
WHOLE = 2
"""A text of no more than so many times those letters is read whole: most would have to be read again."""
ALONE_LETTERS = 4096
"""Up to so many letters, texts are tokenised one by one in the thread that asks."""
SLICE_LETTERS = 16 * 1024
"""Of texts that are tokenised at once: four milliseconds of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """So many tokens of each text are needed, those farthest from the side that is `cut`."""

    tokens: int
    cut: TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRead:
    """Tokens of a text: all (`whole`), or at least as many as are needed, of which only those are to be trusted.

    `start`: letters before the part that was read; `encoding` tells offsets from there.
    """

    encoding: Encoding
    whole: bool = True
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """From `start` to `stop` of a text, about `letters`. Not to be trusted is what lies before `trusted`."""

    text: str
    letters: int
    start: int
    stop: int
    trusted: int = 0

    @property
    def whole(self) -> bool:
        return self.stop - self.start == len(self.text)


class PrefixReader:
    """Of one tokenizer. May run in several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` adds no special tokens."""
        self._tokenizer = tokenizer
        self._parting = Parting(tokenizer)

    def read(self, text: str, need: Need | None = None, *, offsets: bool = False) -> PrefixRead:
        """One text; see `batches`."""
        ((read,),) = self.batches([text], need, offsets=offsets)
        return read

    def batches(
        self, texts: Iterable[str], need: Need | None = None, *, offsets: bool = False
    ) -> Iterator[list[PrefixRead]]:
        """All texts in order, as far as needed, in slices of about SLICE_LETTERS, at least one text each.

        `offsets`: also where tokens lie in their text, a fifth more time.
        """
        parts: list[_Part] = []
        held = 0
        for text in texts:
            part = self._part(text, need, TOKEN_LETTERS * (need.tokens + 1) if need else 0)
            letters = part.stop - part.start + TEXT_LETTERS
            if parts and held + letters > SLICE_LETTERS:
                yield self._read(parts, need, offsets)
                parts, held = [], 0
            parts.append(part)
            held += letters
        if parts:
            yield self._read(parts, need, offsets)

    def _read(self, parts: Sequence[_Part], need: Need | None, offsets: bool) -> list[PrefixRead]:
        encodings = self._encoded([part.text[part.start : part.stop] for part in parts], offsets)
        return [self._enough(part, need, encoding, offsets) for part, encoding in zip(parts, encodings, strict=True)]

    def _enough(self, part: _Part, need: Need | None, encoding: Encoding, offsets: bool) -> PrefixRead:
        """What was read of a text, or what is read next, twice as much again and again, until it has tokens enough."""
        while need and not part.whole:
            doubtful = len(self._encoded([part.text[part.start : part.trusted]])[0]) if part.trusted else 0
            if len(encoding) - doubtful >= need.tokens:
                return PrefixRead(encoding=encoding, whole=False, start=part.start)
            part = self._part(part.text, need, 2 * part.letters)
            (encoding,) = self._encoded([part.text[part.start : part.stop]], offsets)
        return PrefixRead(encoding=encoding)

    def _part(self, text: str, need: Need | None, letters: int) -> _Part:
        """About so many letters of a text; all where it is not much longer, or cannot be parted."""
        whole = _Part(text=text, letters=letters, start=0, stop=len(text))
        if need is None or len(text) <= WHOLE * letters:
            return whole
        if need.cut is TruncationSide.RIGHT:
            stop = self._parting.before(text, letters)
            return whole if stop is None else replace(whole, stop=stop)
        places = self._parting.after(text, letters)
        return whole if places is None else replace(whole, start=places[0], trusted=places[1])

    def _encoded(self, texts: Sequence[str], offsets: bool = False) -> list[Encoding]:
        # The batch calls alone leave Python's lock to others while they work. Several texts wait for the library's own
        # threads, which may be busy with other requests: few letters, as on the event loop, do not.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        if sum(map(len, texts)) <= ALONE_LETTERS:
            return [encode([text])[0] for text in texts]
        return encode(texts)
