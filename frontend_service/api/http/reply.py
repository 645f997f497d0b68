"""What goes back: JSON by orjson, which writes numpy's arrays as they lie in memory."""

import base64
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from frontend_service.postprocess import packing
from shared.jobs import Rows

JSON = "application/json"
HTML = "text/html; charset=utf-8"
FLOAT_WEIGHT, BASE64_WEIGHT = 16, 4
"""How much longer a byte of a vector takes into JSON than to be copied."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A whole one. `headers`: beside those that every reply has."""

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def to_json(content: Any) -> bytes:
    """As JSON; numbers that JSON does not have become null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def each_to_json(items: Iterable[Any]) -> list[orjson.Fragment]:
    """One after the other, so that other threads have their turns between."""
    return [orjson.Fragment(to_json(each)) for each in items]


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def rows_of(rows: Rows | None) -> Floats:
    """float32 [N, D]."""
    assert rows is not None
    return packing.unpack_float32(rows)


def split(rows: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Of each text [its length, D]."""
    return [rows[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def base64_of(array: Any) -> str:
    """Of its bytes, little-endian, one row after the other."""
    return base64.b64encode(array).decode()
