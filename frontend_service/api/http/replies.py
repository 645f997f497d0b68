"""Replies: JSON by orjson, which writes numpy arrays directly from memory, and vectors as numbers or as base64.

Source of the encodings: vLLM's vllm/entrypoints/pooling/utils.py and vllm/utils/serial_utils.py.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from frontend_service import postprocess
from shared.jobs import Rows
from shared.vectors import DataType

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
    return np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)


def split(rows: Floats, lengths: Sequence[int]) -> list[Floats]:
    """Splits rows [T, D] into those of each text [its length, D]."""
    return [rows[start:stop] for start, stop in pairwise(accumulate(lengths, initial=0))]


def base64_of(array: Any) -> str:
    """Base64 of an array's bytes: little-endian, one row after the other."""
    return pybase64.b64encode_as_string(array)


Format = Literal["float", "base64"]
EmbedDtype = Literal["float32", "float16", "bfloat16"]
DATA_TYPES: dict[EmbedDtype, DataType] = {
    "float32": DataType.FLOAT32,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
}
OutputDtype = Literal["float", "binary", "ubinary"]


def bits_of(rows: Floats) -> Any:
    """Quantizes rows to uint8 [N, ceil(D / 8)], a bit a number: set where it is not negative, the first one highest."""
    return np.frombuffer(postprocess.pack(rows, DataType.BINARY).data, dtype=np.uint8).reshape(len(rows), -1)


BITS: dict[str, Callable[[Floats], Any]] = {
    "binary": lambda rows: (bits_of(rows).astype(np.int16) - 128).astype(np.int8),
    "ubinary": bits_of,
}
"""Quantizations of rows to a bit a number, by the names that Cohere and Voyage have for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The encoding of a reply's vectors: numbers, or base64 of little-endian numbers of `dtype`.

    `output_dtype`: the numbers themselves, or their bits.
    """

    format: Format
    dtype: EmbedDtype
    output_dtype: OutputDtype = "float"

    def to_bytes(self, array: Floats) -> bytes | memoryview:
        """float32 [..., D] as bytes, one number after the other. What has them in memory already is not copied."""
        data_type = DATA_TYPES[self.dtype]
        if data_type is DataType.FLOAT32:
            return np.ascontiguousarray(array, dtype="<f4").reshape(-1).data.cast("B")
        return bytes(postprocess.pack(array.reshape(1, -1), data_type).data)

    def to_json(self, fields: Mapping[str, Any], name: str, array: Floats) -> Parts:
        """An object of `fields` and of an array `name`: numbers, or a string of base64."""
        bits = None
        if self.output_dtype != "float":
            bits = BITS[self.output_dtype](array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)
        if self.format == "float":
            return (to_json({**fields, name: array if bits is None else bits}),)
        return with_base64(fields, name, self.to_bytes(array) if bits is None else bits.tobytes())
