"""Files of a model repository: readers for JSON and tensors, and which files its rows may depend on.

Every failure names the file; nothing in a file is executed.
"""

import hashlib
import json
import reprlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.errors import ModelRefused

Kind = TypeVar("Kind", str, bool, dict, list)  # type: ignore[type-arg]
KINDS: dict[type, str] = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}
SUFFIXES = (".safetensors", ".bin", ".pt")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files in which transformers looks for weights, in this order; each may be in several, with an index of its name."""
POINTER = b"version https://git-lfs.github.com/spec/"
CODE = {".py"}
"""Suffixes of code, which counts only where it is executed."""
READ = {".json", ".safetensors", ".bin", ".pt", ".txt", ".model", ".jinja", ".metadata"}
READ |= {".codes", ".spm", ".tiktoken", ".vocab"}
"""Suffixes of files that a row may depend on; those in the second line hold vocabularies."""
EXPORTS = ("onnx", "openvino")
"""Folders at the root of a repository that hold the same weights for other runtimes."""
FOR_PEOPLE = ("license*", "requirements*.txt", "readme*", "notice*")
"""Patterns of files for people, whatever their suffix."""


def read_json(path: Path, missing: Any = None) -> Any:
    """Reads a JSON file; returns `missing`, if there is one, where the file is absent. Raises ModelRefused."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is None:
            raise ModelRefused(f"{path} is missing") from None
        return missing
    except (OSError, ValueError) as error:
        raise ModelRefused(f"{path} cannot be read: {error}") from None


def read_object(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads a JSON file that must hold an object, as `read_json` does. Raises ModelRefused."""
    content = read_json(path, missing)
    if not isinstance(content, dict):
        raise ModelRefused(f"{path} must hold a JSON object, it holds {type(content).__name__}")
    return content


def checked(value: Any, kind: type[Kind], where: str) -> Kind:
    """Checks the kind of a value from a JSON file; `where` names the file and the key. Raises ModelRefused."""
    if not isinstance(value, kind):
        raise ModelRefused(f"{where} {reprlib.repr(value)} must be {KINDS[kind]}")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Checks a list of texts from a JSON file, as `checked` does."""
    return tuple(checked(text, str, where) for text in checked(value, list, where))


def one_of(value: Any, choices: Iterable[str], where: str) -> str:
    """Checks a value from a JSON file that has a few choices, as `checked` does."""
    names = tuple(choices)
    if value not in names:
        quoted = value if isinstance(value, str) and value else reprlib.repr(value)
        raise ModelRefused(f"{where} {quoted} is not one of {', '.join(names)}")
    return str(value)


def check_keys(object_keys: Iterable[str], keys: Collection[str], where: Path | str, why: str) -> None:
    """Raises ModelRefused for the first key of an object that is none of `keys`; `why` ends the sentence."""
    for key in sorted(set(object_keys) - set(keys)):
        raise ModelRefused(f"{where} has {key}, {why}")


def whole(value: Any, where: str, least: int = 1) -> int:
    """Checks a whole number from a JSON file; `where` names the file and the key. Raises ModelRefused.

    sentence-transformers fails on a text, a truth value or a fraction in its place at the first text.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelRefused(f"{where} {value!r} must be a whole number, at least {least}")
    return value


def tensor_files(folder: Path, stem: str, names: set[str]) -> list[Path]:
    """Finds the files that hold tensors of these names: one with a suffix of weights, else shards by their index.

    Safetensors come before pickles. Raises ModelRefused.
    """
    stems = (stem, "pytorch_model") if stem == "model" else (stem,)
    for suffix in SUFFIXES:
        for file in (folder / (name + suffix) for name in stems):
            if file.is_file():
                return [file]
            if shards := _shards(file):
                return sorted({shards[name] for name in names & set(shards)})
    file_names = ", ".join(name + SUFFIXES[index > 0] for index, name in enumerate(stems))
    raise ModelRefused(f"{folder} has none of {file_names}")


def _shards(file: Path) -> dict[str, Path]:
    """The files that hold the tensors of `file`, by name, as the index beside it says; none without one."""
    index = _index(file)
    shards = read_object(index, missing={}).get("weight_map", {})
    for name in set(shards.values()):
        check_inside(index, name)
    return {key: file.parent / name for key, name in shards.items()}


def _index(file: Path) -> Path:
    return file.with_name(f"{file.name}.index.json")


def read_tensors(path: Path, wanted: set[str] | None = None) -> dict[str, Tensor]:
    """Reads tensors by name, only the `wanted` ones. Raises ModelRefused."""
    check_fetched(path)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if wanted is None or name in wanted]  # noqa: SIM118
                return {name: file.get_tensor(name) for name in names}
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"{path} cannot be read: {first_line(error)}") from None
    except Exception as error:  # pickles fail in many ways; weights_only refuses whatever is no plain tensor
        raise ModelRefused(f"{path} cannot be read as plain tensors: {first_line(error)}") from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ModelRefused(f"{path} holds something else than tensors by name")
    return {name: tensor for name, tensor in content.items() if wanted is None or name in wanted}


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers loads weights from: one, or shards by their index. Raises ModelRefused.

    Other files beside them, of another number format for instance, are not looked at.
    """
    for file in (folder / name for name in WEIGHTS):
        if file.is_file():
            return [file]
        if shards := sorted(set(_shards(file).values())):
            for shard in shards:
                if not shard.is_file():
                    raise ModelRefused(f"{shard} is missing; {_index(file).name} names it")
            return shards
    return []


def check_fetched(path: Path) -> None:
    """Raises ModelRefused for the pointer that Git leaves in place of a large file (docs/spec.md of Git LFS)."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise ModelRefused(f"{path} is a pointer of Git LFS, not the file: `git lfs pull` fetches it")


def check_inside(file: Path, name: str) -> None:
    """Raises ModelRefused where `file` names a path that leaves its repository."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelRefused(f"{file}: the path {name!r} leaves the repository")


def counting_suffixes(trust_remote_code: bool) -> set[str]:
    """Suffixes of the files that count."""
    return READ | (CODE if trust_remote_code else set())


def pickles_beside_safetensors(files: Iterable[Path]) -> set[Path]:
    """Finds weights that nothing reads: pickles in a folder with the same weights as safetensors, which are preferred.

    Other safetensors (an adapter's) do not replace a model's pickle.
    """
    listed = list(files)
    safe = {file.parent for file in listed if file.match("model*.safetensors")}
    return {file for file in listed if file.match("pytorch_model*.bin") and file.parent in safe}


def digest_of_files(path: Path, trust_remote_code: bool) -> "hashlib._Hash":
    """Digests the path inside the repository and the content of every file that counts.

    The length precedes both, so that a byte that moves from one file to the next changes the digest.
    """
    sha256 = hashlib.sha256()
    for file in sorted(_counting(path, counting_suffixes(trust_remote_code))):
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


def first_line(error: BaseException) -> str:
    """Reads the first line of a library's error message. The message of a KeyError is only its key, so words are
    added."""
    message = str(error).strip() or type(error).__name__
    if isinstance(error, KeyError):
        message = f"there is no {message}"
    if "trust_remote_code" in message:
        return "it needs Python code of its repository, which only --trust-remote-code runs"
    if "`weights_only`" in message:  # PyTorch's advice would execute code in the file
        return "it is no file of tensors by name alone, and nothing else is read"
    return message.splitlines()[0]


def one_line(error: BaseException) -> str:
    """The whole error message of a library in one line, for errors whose first line is only a heading."""
    message = " ".join(str(error).split())
    short = not message or "trust_remote_code" in message or isinstance(error, KeyError)
    return first_line(error) if short else message
