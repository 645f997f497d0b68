"""The end of a Parquet file, which has the types of its columns twice: as Parquet's, and once more as Arrow's.

The file format: https://parquet.apache.org/docs/file-format. Arrow writes its own types, dictionaries among them, as a
value of the footer whose key is ARROW:schema.
"""

import io
import os
from typing import IO, Any

MAGIC = b"PAR1"
ARROW_KEY = b"\x0cARROW:schema"
"""The key, after its length."""


def without_arrow_types(raw: IO[bytes], parquet: Any) -> Any:
    """pyarrow's FileMetaData of a file without Arrow's types, by which dictionaries are read as plain values."""
    raw.seek(-8, os.SEEK_END)
    length = int.from_bytes(raw.read(4), "little")
    raw.seek(-8 - length, os.SEEK_END)
    footer = raw.read(length)
    before, key, behind = footer.rpartition(ARROW_KEY)
    footer = before + key.lower() + behind  # a key of the same length that pyarrow ignores
    return parquet.read_metadata(io.BytesIO(MAGIC + footer + length.to_bytes(4, "little") + MAGIC))
