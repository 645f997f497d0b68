"""Replies: JSON by orjson, which writes numpy arrays directly from memory, with base64 by pybase64."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from frontend_service import postprocess
from shared.jobs import Rows

JSON = "application/json"
HTML = "text/html; charset=utf-8"
FLOAT_WEIGHT = 16
"""Times that a byte of a vector takes longer into JSON than to be copied."""

Floats = NDArray[np.float32]
Parts = tuple[bytes, ...]
"""An object as JSON, in parts that belong end to end: megabytes of base64 are copied once, into the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A whole reply. `headers`: those beside the ones that every reply has."""

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def to_json(content: Any) -> bytes:
    """Writes content as JSON. NaN and infinity, which JSON does not have, become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def each_to_json(entries: Iterable[Any]) -> list[orjson.Fragment]:
    """Writes each entry of a list by itself, so that other threads can run in between."""
    return [orjson.Fragment(to_json(entry)) for entry in entries]


def each_in_parts(entries: Iterable[Any]) -> list[Parts]:
    """Writes each entry of a list by itself, for `with_list`."""
    return [(to_json(entry),) for entry in entries]


def with_base64(fields: Mapping[str, Any], name: str, data: Any) -> Parts:
    """Writes an object of `fields`, one at least, and of a string with a plain `name`, the base64 of bytes."""
    return to_json(fields)[:-1], b',"%b":"' % name.encode(), pybase64.b64encode(data), b'"}'


def with_list(fields: Mapping[str, Any], name: str, entries: Sequence[Parts]) -> bytes:
    """Writes an object of `fields`, one at least, and of a list with a plain `name` of written entries."""
    separated = [part for entry in entries for part in (b",", *entry)][1:]
    return b"".join([to_json(fields)[:-1], b',"%b":[' % name.encode(), *separated, b"]}"])


def now() -> int:
    """The time in whole seconds since 1970."""
    return int(time.time())


def rows_of(rows: Rows | None) -> Floats:
    """Rows as an array, float32 [N, D]."""
    assert rows is not None
    return postprocess.unpack_float32(rows)


def split(rows: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Splits rows [T, D] into those of each text [its length, D]."""
    return [rows[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def base64_of(array: Any) -> str:
    """Base64 of an array's bytes: little-endian, one row after the other."""
    return pybase64.b64encode_as_string(array)
