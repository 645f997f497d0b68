"""Vectors as numbers, as base64, or as bytes whose layout is in a header.

Source: vLLM's vllm/entrypoints/pooling/utils.py and vllm/utils/serial_utils.py.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from frontend_service import postprocess
from frontend_service.api.http.reply import Floats, HttpReply, Parts, to_json, with_base64
from shared.errors import InvalidInput
from shared.vectors import DataType

Format = Literal["float", "base64", "bytes", "bytes_only"]
EmbedDtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "little", "big"]
DATA_TYPES: dict[EmbedDtype, DataType] = {
    "float32": DataType.FLOAT32,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
}
OutputDtype = Literal["float", "binary", "ubinary"]
OCTETS = "application/octet-stream"
HEADER_BYTES = 60 * 1024
"""Longest header of a reply: Python's http.client reads up to 64 KiB."""


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
    """The encoding of a reply's vectors. `dtype` and `endianness` hold for bytes; `native` is little-endian.

    `output_dtype` holds for numbers and base64: the numbers themselves, or their bits.
    """

    format: Format
    dtype: EmbedDtype
    endianness: Endianness
    output_dtype: OutputDtype = "float"

    @property
    def is_bytes(self) -> bool:
        """The reply is bytes alone, no JSON."""
        return self.format in ("bytes", "bytes_only")

    def to_bytes(self, array: Floats) -> bytes | memoryview:
        """float32 [..., D] as bytes, one number after the other. What has them in memory already is not copied."""
        data_type = DATA_TYPES[self.dtype]
        if data_type is DataType.FLOAT32 and self.endianness != "big":
            return np.ascontiguousarray(array, dtype="<f4").reshape(-1).data.cast("B")
        data = bytes(postprocess.pack(array.reshape(1, -1), data_type).data)
        if self.endianness != "big":
            return data
        return np.frombuffer(data, dtype=f"<u{data_type.row_bytes(1)}").byteswap().tobytes()

    def to_json(self, fields: Mapping[str, Any], name: str, array: Floats) -> Parts:
        """An object of `fields` and of an array `name`: numbers, or a string of base64."""
        bits = None
        if self.output_dtype != "float":
            bits = BITS[self.output_dtype](array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)
        if self.format == "float":
            return (to_json({**fields, name: array if bits is None else bits}),)
        return with_base64(fields, name, self.to_bytes(array) if bits is None else bits.tobytes())


def bytes_reply(encoding: Encoding, arrays: Iterable[Floats], about: dict[str, Any]) -> HttpReply:
    """A reply of all arrays end to end. Without `bytes_only` its header `metadata` has `about` and the layout.

    Raises InvalidInput where that header would be longer than clients read.
    """
    pieces, layouts, start = [], [], 0
    for index, array in enumerate(arrays):
        pieces.append(encoding.to_bytes(array))
        stop = start + len(pieces[-1])
        layouts.append(_layout(encoding, index, start, stop, array.shape))
        start = stop
    body = b"".join(pieces)
    if encoding.format == "bytes_only":
        return HttpReply(body=body, content_type=OCTETS)
    metadata = json.dumps(about | {"data": layouts})
    if len(metadata) > HEADER_BYTES:
        raise InvalidInput(
            f"encoding_format bytes tells of {len(layouts)} vectors in one header of {len(metadata)} bytes, the limit "
            f"is {HEADER_BYTES}: send fewer inputs, or ask for bytes_only or base64",
            field="encoding_format",
        )
    return HttpReply(body=body, content_type=OCTETS, headers=(("metadata", metadata),))


def _layout(encoding: Encoding, index: int, start: int, stop: int, shape: Sequence[int]) -> dict[str, Any]:
    """The layout of one array among the bytes of a reply."""
    return {
        "index": index,
        "embed_dtype": encoding.dtype,
        "endianness": encoding.endianness,
        "start": start,
        "end": stop,
        "shape": list(shape),
    }
