"""The files of a repository that its rows may depend on: those that are fetched and that its fingerprint covers."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

CODE = {".py"}
"""Suffixes of code, which counts only where it is executed."""
READ = {".json", ".safetensors", ".bin", ".pt", ".txt", ".model", ".jinja", ".metadata"}
READ |= {".codes", ".spm", ".tiktoken", ".vocab"}
"""Suffixes of files that a row may depend on; those in the second line hold vocabularies."""
EXPORTS = ("onnx", "openvino")
"""Folders at the root of a repository that hold the same weights for other runtimes."""
FOR_PEOPLE = ("license*", "requirements*.txt", "readme*", "notice*")
"""Patterns of files for people, whatever their suffix."""


def kinds(trust_remote_code: bool) -> set[str]:
    """Suffixes of the files that count."""
    return READ | (CODE if trust_remote_code else set())


def pickles_beside_safetensors(files: Iterable[Path]) -> set[Path]:
    """Finds weights that nothing reads: pickles in a folder with the same weights as safetensors, which are preferred.

    Other safetensors (an adapter's) do not replace a model's pickle.
    """
    listed = list(files)
    safe = {file.parent for file in listed if file.match("model*.safetensors")}
    return {file for file in listed if file.match("pytorch_model*.bin") and file.parent in safe}


def digest(path: Path, trust_remote_code: bool) -> "hashlib._Hash":
    """Digests the path inside the repository and the content of every file that counts.

    The length precedes both, so that a byte that moves from one file to the next changes the digest.
    """
    sha256 = hashlib.sha256()
    for file in sorted(_counting(path, kinds(trust_remote_code))):
        name = str(file.relative_to(path)).encode()
        sha256.update(b"%d %s %d " % (len(name), name, file.stat().st_size))
        with file.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                sha256.update(block)
    return sha256


def _counting(path: Path, suffixes: set[str]) -> Iterator[Path]:
    files = [file for file in path.rglob("*") if file.suffix in suffixes and file.is_file()]
    unread = pickles_beside_safetensors(files)
    for file in files:
        parts = file.relative_to(path).parts
        hidden = any(part.startswith(".") for part in parts)
        export = len(parts) > 1 and parts[0] in EXPORTS
        if not (hidden or export or file in unread or _is_for_people(file)):
            yield file


def _is_for_people(file: Path) -> bool:
    name = Path(file.name.lower())
    return any(name.match(pattern) for pattern in FOR_PEOPLE)
