"""Input files: which there are, the format of each, and what identifies its contents."""

import glob
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from selvage.bulk import Failed

SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
}
SHARD_FILE = re.compile(r"part-(\d{6,})\.parquet|_bad-(\d{6,})\.jsonl")
"""Names of the files of a shard of the output."""
MANIFEST = "_manifest.json"
"""The file of the manifest of an output. Readers of Parquet skip such names."""
HASHED_BYTES = 64 * 1024
"""Bytes at either end of a file that are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of texts. `size`: bytes on the disk."""

    path: str
    format: str
    zipped: bool
    size: int


def find_inputs(patterns: Sequence[str], output: Path | None = None) -> list[InputFile]:
    """The files that patterns and folders name, in the order of the patterns, and by name within each.

    `output`: the folder that is written to, where files of an earlier command are left out. Raises Failed for any other
    input there, and for a pattern without a file.
    """
    files: dict[str, InputFile] = {}
    real_path = cache(os.path.realpath)  # thousands of files share a folder
    for pattern in patterns:
        matching = _matching(pattern)
        paths = [path for path in matching if output is None or not _is_output(path, pattern, output, real_path)]
        if matching and not paths:
            raise Failed(f"--output: {output} is where the inputs {pattern!r} lie; take another folder")
        if not paths:
            raise Failed(f"INPUT: there is no file {pattern!r}")
        for path in paths:
            files.setdefault(path, _file(path))
    return list(files.values())


def identity_of(file: InputFile) -> dict[str, str | int]:
    """A file's path, its size and a hash of both its ends: enough to notice another file, and quick for any size."""
    with open(file.path, "rb") as stream:
        digest = hashlib.sha256(stream.read(HASHED_BYTES))
        stream.seek(max(0, file.size - HASHED_BYTES))
        digest.update(stream.read(HASHED_BYTES))
    return {"path": file.path, "bytes": file.size, "ends": digest.hexdigest()}


def _is_output(path: str, pattern: str, output: Path, real_path: Callable[[str], str]) -> bool:
    """Whether an earlier command wrote a file. Raises Failed for any other input in the output folder."""
    if real_path(str(output)) != real_path(os.path.dirname(path)):
        return False
    name = os.path.basename(path)
    if name != MANIFEST and not SHARD_FILE.fullmatch(name):
        raise Failed(f"--output: {output} holds the input {path}; take another folder")
    if path == pattern:
        fault = f"--output: the input {path} is an output of such a command"
        raise Failed(f"{fault}; put a pattern that matches it in quotes, or take another folder")
    return True


def _matching(pattern: str) -> list[str]:
    """Paths that a pattern matches.

    In a folder these are the files that readers of Parquet would take too: no name begins with _ or a dot.
    """
    if os.path.isdir(pattern):
        names = sorted(path.name for path in Path(pattern).iterdir() if path.is_file() and _suffix(path.name)[0])
        return [str(Path(pattern, name)) for name in names if not name.startswith(("_", "."))]
    if os.path.exists(pattern):
        return [pattern]
    return sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))


def _suffix(path: str) -> tuple[str, bool]:
    """The format by a path's suffix, "" where it has none that says one, and whether the file is zipped."""
    name = path.lower()
    zipped = name.endswith(".gz")
    return SUFFIXES.get(os.path.splitext(name.removesuffix(".gz"))[1], ""), zipped


def _file(path: str) -> InputFile:
    kind, zipped = _suffix(path)
    if not kind:
        raise Failed(f"INPUT: the name of {path} tells no format; it must end with {', '.join(SUFFIXES)} (or .gz)")
    if zipped and kind == "parquet":
        raise Failed(f"INPUT: {path} is zipped; Parquet is compressed inside, and read as it is only")
    return InputFile(path=path, format=kind, zipped=zipped, size=os.path.getsize(path))
