"""What callers give as texts: one or many, as strings or as token ids. Knows no calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from selvage.errors import InvalidInput
from selvage.messages.parts import InputPart, runs
from selvage.v1.embedding_pb2 import TokenIds

Texts = str | Sequence[int] | Iterable[str] | Iterable[Sequence[int]]
"""One text or many, each a string or token ids."""
ENTRY_LETTERS = 16
"""Of work, a text counts as if it had so many letters more."""
ID_LETTERS = 4
"""A token id counts like so many letters."""
MOST_ID = 2**31
"""Ids are below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Texts, or lists of token ids; `single` where one was given, not in a list."""

    entries: Sequence[Any]
    tokenized: bool
    single: bool

    @classmethod
    def of(cls, texts: Any, field: str = "texts") -> "Inputs":
        """Raises InvalidInput where something is neither a string nor token ids, or both kinds are there, or one that
        no message may hold."""
        if isinstance(texts, bytes | bytearray):
            raise InvalidInput(f"{field} are bytes; wanted are strings or token ids", field=field)
        if isinstance(texts, str):
            return cls(entries=[text(texts, field)], tokenized=False, single=True)
        entries = list(texts)
        if all(map(_is_string, entries)):
            for place, each in enumerate(entries):
                text(each, f"{field}[{place}]")
            return cls(entries=entries, tokenized=False, single=False)
        if all(_is_number(each) for each in entries):
            _check_ids(entries, field)
            return cls(entries=[entries], tokenized=True, single=True)
        wanted = _is_string if isinstance(entries[0], str) else _is_ids
        for place, each in enumerate(entries):
            if not wanted(each):
                told = f"{field}[{place}] is of type {type(each).__name__}; wanted are strings only, or token ids only"
                raise InvalidInput(told, field=f"{field}[{place}]")
            if wanted is _is_ids:
                _check_ids(each, f"{field}[{place}]")
        return cls(entries=entries, tokenized=True, single=False)

    def __len__(self) -> int:
        return len(self.entries)

    def parts(self, *, most: int, letters: int, common: int = 0, beside: Sequence[str] = ()) -> Iterable[InputPart]:
        """Of so many entries and letters each; `common`: letters that are added to each, as by a prompt; `beside`: a
        second text of each, or none at all."""
        each = ID_LETTERS if self.tokenized else 1
        both = zip_longest(self.entries, beside, fillvalue="")
        sizes = (len(entry) * each + len(second) + ENTRY_LETTERS + common for entry, second in both)
        return (InputPart(start=start, stop=stop) for start, stop in runs(sizes, most=most, room=letters))

    def put(self, message: Any, rows: slice) -> None:
        """Into `texts` or `tokenized` of a request."""
        if self.tokenized:
            message.tokenized.extend(TokenIds(ids=entry) for entry in self.entries[rows])
        else:
            message.texts.extend(self.entries[rows])


def strings(texts: Iterable[str] | str, field: str) -> tuple[list[str], bool]:
    """Texts that cannot be token ids, and whether it was a single one. Raises InvalidInput."""
    inputs = Inputs.of(texts, field)
    if inputs.tokenized:
        raise InvalidInput(f"{field} are to be strings", field=field)
    return list(inputs.entries), inputs.single


def text(value: str, field: str) -> str:
    """The same. Raises InvalidInput where UTF-8 cannot hold it."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{field} has half of a character at {error.start}", field=field) from None
    return value


def given(**fields: Any) -> dict[str, Any]:
    """Those fields of a request that are not None. Raises InvalidInput for a prompt that has a name as well."""
    if fields.get("prompt") is not None and fields.get("prompt_name") is not None:
        raise InvalidInput("prompt and prompt_name exclude each other", field="prompt")
    return {name: value for name, value in fields.items() if value is not None}


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__")


def _check_ids(ids: Sequence[int], field: str) -> None:
    """Raises InvalidInput where one fits into no message."""
    if len(ids) and not (min(ids) >= 0 and max(ids) < MOST_ID):
        raise InvalidInput(f"{field} has an id that is below 0, or {MOST_ID} and above", field=field)


def _is_ids(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and all(map(_is_number, value))
