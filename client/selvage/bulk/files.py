"""Input files: which there are, what format each has, and what tells that one is still the same."""

import glob
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from selvage.bulk.failures import Failed
from selvage.bulk.shards import is_output

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
}
FORMATS = ("jsonl", "csv", "tsv", "text", "parquet")
ENDS = 64 * 1024
"""Bytes at either end of a file that are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """`size` in bytes, as it lies on disk."""

    path: str
    format: str
    zipped: bool
    size: int


def find(patterns: Sequence[str], format_: str = "", output: Path | None = None) -> list[InputFile]:
    """In the order of the patterns; what a pattern matches, and what lies in a folder, by name.

    `format_`: of all; "": by the file's suffix. `output`: the folder that is written to; the command's own files there
    are no inputs, and others are refused. Raises Failed.
    """
    found: dict[str, InputFile] = {}
    real = cache(os.path.realpath)  # thousands of files share a folder
    for pattern in patterns:
        matching = _matching(pattern)
        paths = [path for path in matching if output is None or not _is_output(path, pattern, output, real)]
        if matching and not paths:
            raise Failed(f"--output: {output} is where the inputs {pattern!r} lie; take another folder")
        if not paths:
            raise Failed(f"INPUT: there is no file {pattern!r}")
        for path in paths:
            found.setdefault(path, _file(path, format_))
    return list(found.values())


def fingerprint(file: InputFile) -> dict[str, str | int]:
    """Its path, size and the hash of both its ends: enough to see another file, and quick for any size."""
    with open(file.path, "rb") as stream:
        digest = hashlib.sha256(stream.read(ENDS))
        stream.seek(max(0, file.size - ENDS))
        digest.update(stream.read(ENDS))
    return {"path": file.path, "bytes": file.size, "ends": digest.hexdigest()}


def _is_output(path: str, pattern: str, output: Path, real: Callable[[str], str]) -> bool:
    """Whether an earlier command wrote a file. Raises Failed for one of somebody else in the same folder."""
    if real(str(output)) != real(os.path.dirname(path)):
        return False
    if not is_output(Path(path).name):
        raise Failed(f"--output: {output} holds the input {path}; take another folder")
    if path == pattern:
        told = f"--output: the input {path} is an output of such a command"
        raise Failed(f"{told}; put a pattern that matches it in quotes, or take another folder")
    return True


def _matching(pattern: str) -> list[str]:
    """Of a folder, what readers of Parquet would take too: no name that begins with _ or a dot."""
    if os.path.isdir(pattern):
        names = sorted(each.name for each in Path(pattern).iterdir() if each.is_file() and _suffix(each.name)[0])
        return [str(Path(pattern, name)) for name in names if not name.startswith(("_", "."))]
    if os.path.exists(pattern):
        return [pattern]
    return sorted(each for each in glob.glob(pattern, recursive=True) if os.path.isfile(each))


def _suffix(path: str) -> tuple[str, bool]:
    """The format, "" where the suffix tells none, and whether it is zipped."""
    name = path.lower()
    zipped = name.endswith(".gz")
    return SUFFIXES.get(os.path.splitext(name.removesuffix(".gz"))[1], ""), zipped


def _file(path: str, format_: str) -> InputFile:
    told, zipped = _suffix(path)
    chosen = format_ or told
    if not chosen:
        raise Failed(f"INPUT: the name of {path} tells no format; give --input-format ({', '.join(FORMATS)})")
    if zipped and chosen == "parquet":
        raise Failed(f"INPUT: {path} is zipped; Parquet is compressed inside, and read as it is only")
    return InputFile(path=path, format=chosen, zipped=zipped, size=os.path.getsize(path))
