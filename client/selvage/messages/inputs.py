"""The texts that callers pass: one or many, as strings or as token ids, checked, and cut into parts. Knows no calls."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from selvage.errors import InvalidInput
from selvage.v1.embedding_pb2 import Spans, TokenIds

R_co = TypeVar("R_co", covariant=True)
Texts = str | Sequence[int] | Iterable[str] | Iterable[Sequence[int]]
"""One text or many, each a string or token ids."""
ENTRY_LETTERS = 16
"""Letters that are added to the length of each text, because a text costs more than its letters."""
ID_LETTERS = 4
"""Letters that a token id counts for."""
MOST_ID = 2**31
"""Token ids are below this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPart:
    """Rows `start` to `stop` of the whole input; for a matrix of scores, also columns `left` to `right`.

    `indivisible`: the rows have a meaning only together. `whole_columns`: so do the columns, and rows have one alone.
    """

    start: int
    stop: int
    left: int = 0
    right: int = 1
    indivisible: bool = False
    whole_columns: bool = False

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.right)

    @property
    def size(self) -> int:
        """Number of results that the part brings."""
        return (self.stop - self.start) * (self.right - self.left)

    def halves(self) -> "list[InputPart]":
        """Two parts that make up this one, cut through its longer side that may be cut; none where there is no such."""
        rows, columns = self.stop - self.start, 1 if self.whole_columns else self.right - self.left
        if max(rows, columns) < 2 or self.indivisible:
            return []
        if rows >= columns:
            middle = self.start + rows // 2
            return [replace(self, stop=middle), replace(self, start=middle)]
        middle = self.left + columns // 2
        return [replace(self, right=middle), replace(self, left=middle)]


class Operation(ABC, Generic[R_co]):
    """One use of a client's method: the requests for the parts of its input, and the result of their replies."""

    def __init__(self, *, seconds: float | None, progress: bool = False) -> None:
        """`seconds`: the time limit of the whole call; None: the client's own. `progress`: show how far it is."""
        self.seconds, self.progress = seconds, progress

    @property
    def size(self) -> int:
        """Number of results of all parts together."""
        return 1

    def parts(self) -> Iterator[InputPart]:
        """The parts of the input, which cover each place once."""
        yield InputPart(start=0, stop=1)

    def undivided(self) -> Iterator[InputPart]:
        """The parts of the input, each with all documents, which no halves of it lose; none where no list is one."""
        yield from ()

    def offsets(self, _: InputPart) -> Mapping[str, int]:
        """For each list in the request of a part, the place of its first entry in the whole input."""
        return {}

    @abstractmethod
    def message(self, part: InputPart) -> Any:
        """The request for a part."""

    @abstractmethod
    def add_reply(self, part: InputPart, reply: Any) -> None:
        """Stores what the reply for a part holds; replies come in any order."""

    @abstractmethod
    def result(self) -> R_co:
        """What the client's method returns, once every part has its reply."""


def runs(sizes: Iterable[int], *, most: int, room: int) -> Iterator[tuple[int, int]]:
    """Cuts entries of these sizes into runs, and yields where each run starts and stops.

    A run has as many entries as possible, but at most `most`, and sizes that sum up to at most `room`. An entry over
    `room` is a run of its own. Without entries there is one empty run, so that the service gets to refuse it.
    """
    start = stop = used = 0
    for size in sizes:
        if stop > start and (stop - start == most or used + size > room):
            yield start, stop
            start, used = stop, 0
        stop, used = stop + 1, used + size
    yield start, stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Texts, or lists of token ids. `single`: the caller passed one text, not a list of one."""

    entries: Sequence[Any]
    tokenized: bool
    single: bool

    @classmethod
    def of(cls, texts: Any, field: str = "texts") -> "Inputs":
        """Checks what a caller passes as `field`.

        Raises InvalidInput where an entry is neither a string nor token ids, where both kinds are mixed, and where no
        message can hold an entry.
        """
        if isinstance(texts, bytes | bytearray):
            raise InvalidInput(f"{field} are bytes; wanted are strings or token ids", field=field)
        single = isinstance(texts, str)
        entries: list[Any] = [texts] if single else list(texts)
        if entries and all(map(_is_number, entries)):
            single, entries = True, [entries]
        tokenized = bool(entries) and not isinstance(entries[0], str)
        for place, entry in enumerate(entries):
            name = field if single else f"{field}[{place}]"
            if tokenized and _is_ids(entry):
                _check_ids(entry, name)
            elif isinstance(entry, str) and not tokenized:
                checked_text(entry, name)
            else:
                fault = f"{name} is of type {type(entry).__name__}; wanted are strings only, or token ids only"
                raise InvalidInput(fault, field=name)
        return cls(entries=entries, tokenized=tokenized, single=single)

    @classmethod
    def strings(cls, texts: str | Iterable[str], field: str, *, single: bool = True) -> "Inputs":
        """As `of`, but without token ids. Raises InvalidInput.

        `single`: whether one string may stand for a list; one that may not would pass for a list of its letters.
        """
        inputs = cls.of(texts, field)
        if inputs.tokenized or (inputs.single and not single):
            raise InvalidInput(f"{field} are to be {'strings' if single else 'a list of strings'}", field=field)
        return inputs

    def __len__(self) -> int:
        return len(self.entries)

    def parts(self, *, most: int, letters: int, common: int = 0, pairs: Sequence[str] = ()) -> Iterable[InputPart]:
        """Parts of at most `most` entries and `letters` letters.

        `common`: letters that are added to each entry, as by a prompt. `pairs`: a second text for each entry, or none.
        """
        letters_per_unit = ID_LETTERS if self.tokenized else 1
        entry_pairs = zip_longest(self.entries, pairs, fillvalue="")
        sizes = (len(entry) * letters_per_unit + len(pair) + ENTRY_LETTERS + common for entry, pair in entry_pairs)
        return (InputPart(start=start, stop=stop) for start, stop in runs(sizes, most=most, room=letters))

    def add_to(self, message: Any, rows: slice) -> None:
        """Adds some of the entries to `texts` or `tokenized` of a request."""
        if self.tokenized:
            message.tokenized.extend(TokenIds(ids=entry) for entry in self.entries[rows])
        else:
            message.texts.extend(self.entries[rows])


def checked_text(value: str, field: str) -> str:
    """Returns the text itself. Raises InvalidInput where UTF-8 cannot encode it."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{field} has half of a character at {error.start}", field=field) from None
    return value


def checked_spans(spans: Sequence[Any] | None, inputs: Inputs) -> list[Spans]:
    """The spans of each text, as messages; none for None. For a single text `spans` are its own.

    Raises InvalidInput where they are not one list of pairs for each text.
    """
    if spans is None:
        return []
    lists = [spans] if inputs.single else spans
    if len(lists) != len(inputs):
        raise InvalidInput(f"spans has {len(lists)} entries, texts has {len(inputs)}", field="spans")
    return [_spans(pairs, f"spans[{place}]") for place, pairs in enumerate(lists)]


def _spans(pairs: Any, field: str) -> Spans:
    try:
        bounds = [(operator.index(start), operator.index(end)) for start, end in pairs]
        return Spans(starts=[start for start, _ in bounds], ends=[end for _, end in bounds])
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{field} are to be pairs of characters: where a span starts and ends", field=field
        ) from None


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__")


def _check_ids(ids: Sequence[int], field: str) -> None:
    """Raises InvalidInput where no message can hold one of the ids."""
    if len(ids) and not (min(ids) >= 0 and max(ids) < MOST_ID):
        raise InvalidInput(f"{field} has an id that is below 0, or {MOST_ID} and above", field=field)


def _is_ids(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and all(map(_is_number, value))
