"""The files of a repository that its rows may depend on: what is fetched of it, and what its fingerprint covers."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

CODE = {".py"}
"""Suffixes of code, which counts only where it is run."""
READ = {".json", ".safetensors", ".bin", ".pt", ".txt", ".model", ".jinja", ".metadata"}
READ |= {".codes", ".spm", ".tiktoken", ".vocab"}
"""Suffixes of files that a row may depend on; those of the second line hold vocabularies."""
EXPORTS = ("onnx", "openvino")
"""Folders of the same weights for other runtimes, at the root of a repository."""
BESIDE_THE_POINT = ("license*", "requirements*.txt", "readme*", "notice*")
"""Files for people, whatever their suffix."""


def kinds(trust_remote_code: bool) -> set[str]:
    """Suffixes of the files that count."""
    return READ | (CODE if trust_remote_code else set())


def pickles_beside_safetensors(files: Iterable[Path]) -> set[Path]:
    """Weights that nothing reads: pickles in a folder that has the same as safetensors, which go first everywhere.

    Other safetensors (an adapter's) do not stand for a model's pickle.
    """
    listed = list(files)
    safe = {file.parent for file in listed if file.match("model*.safetensors")}
    return {file for file in listed if file.match("pytorch_model*.bin") and file.parent in safe}


def digest(path: Path, trust_remote_code: bool) -> "hashlib._Hash":
    """A digest of every file that counts, of its path inside the repository and its content.

    Each has its length before it: two repositories with other borders between files are not the same.
    """
    made = hashlib.sha256()
    for file in sorted(_counting(path, kinds(trust_remote_code))):
        name = str(file.relative_to(path)).encode()
        made.update(b"%d %s %d " % (len(name), name, file.stat().st_size))
        with file.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                made.update(block)
    return made


def _counting(path: Path, suffixes: set[str]) -> Iterator[Path]:
    files = [file for file in path.rglob("*") if file.suffix in suffixes and file.is_file()]
    unread = pickles_beside_safetensors(files)
    for file in files:
        parts = file.relative_to(path).parts
        hidden = any(part.startswith(".") for part in parts)
        export = len(parts) > 1 and parts[0] in EXPORTS
        if not (hidden or export or file in unread or _beside_the_point(file)):
            yield file


def _beside_the_point(file: Path) -> bool:
    name = Path(file.name.lower())
    return any(name.match(pattern) for pattern in BESIDE_THE_POINT)
