"""Vectors as numbers or as base64.

Source: vLLM's vllm/entrypoints/pooling/utils.py and vllm/utils/serial_utils.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from frontend_service.api.http.reply import Floats, Parts, to_json, with_base64
from frontend_service.postprocess import packing
from shared.vectors import DataType

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
    return np.frombuffer(packing.pack(rows, DataType.BINARY).data, dtype=np.uint8).reshape(len(rows), -1)


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
        return bytes(packing.pack(array.reshape(1, -1), data_type).data)

    def to_json(self, fields: Mapping[str, Any], name: str, array: Floats) -> Parts:
        """An object of `fields` and of an array `name`: numbers, or a string of base64."""
        bits = None
        if self.output_dtype != "float":
            bits = BITS[self.output_dtype](array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)
        if self.format == "float":
            return (to_json({**fields, name: array if bits is None else bits}),)
        return with_base64(fields, name, self.to_bytes(array) if bits is None else bits.tobytes())
