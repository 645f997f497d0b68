"""The end of a Parquet file, where its types are told: by Parquet itself, and once more by Arrow.

The file format: https://parquet.apache.org/docs/file-format. Arrow keeps its own types, dictionaries among them, as a
value of the footer whose key is ARROW:schema.
"""

import io
import os
from typing import IO, Any

MARK = b"PAR1"
ARROW = b"\x0cARROW:schema"
"""The key behind its length."""


def without_arrow(raw: IO[bytes], parquet: Any) -> Any:
    """pyarrow's FileMetaData of a file, without what Arrow says of its types: dictionaries are plain values then."""
    raw.seek(-8, os.SEEK_END)
    length = int.from_bytes(raw.read(4), "little")
    raw.seek(-8 - length, os.SEEK_END)
    footer = raw.read(length)
    before, key, behind = footer.rpartition(ARROW)
    footer = before + key.lower() + behind  # of the same length, and nobody knows it
    return parquet.read_metadata(io.BytesIO(MARK + footer + length.to_bytes(4, "little") + MARK))
