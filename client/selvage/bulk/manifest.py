"""Files that appear whole; and the record of finished shards, of their inputs, settings and model: one of them.

A shard counts as finished when the manifest names it, and not before. So a command that was killed continues where the
manifest ends, and writes files anew that the manifest does not name.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selvage.bulk import Failed

SUFFIX = ".draft"
"""What names of drafts end with; they begin with a dot. A command that is killed leaves drafts behind."""
VERSION = 1
NAME = "_manifest.json"
"""The file of a manifest. Readers of Parquet skip such names."""


class Draft:
    """A file in the making, at `draft` until `publish_all` names it `path`. `stream`: its bytes, to read and write."""

    def __init__(self, path: Path) -> None:
        """Creates the draft. Raises OSError."""
        self.path = path
        self.draft = path.with_name(f".{path.name}{SUFFIX}")
        self.stream: Any = self.draft.open("w+b")

    def discard(self) -> None:
        """Removes the draft. That its last bytes cannot be written is no error here."""
        with suppress(OSError):
            self.stream.close()
        self.draft.unlink(missing_ok=True)


def publish_all(folder: Path, drafts: list[Draft]) -> None:
    """Gives drafts in a folder their names, once all are on the disk, and waits until the names are. Raises OSError."""
    for draft in drafts:
        draft.stream.flush()
        os.fsync(draft.stream.fileno())
        draft.stream.close()
    for draft in drafts:
        os.replace(draft.draft, draft.path)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """A shard whose files are whole.

    It holds the rows of the input from number x rows_per_shard on: `rows` have vectors, `empty` ones were left out, and
    `bad` ones are listed in one of the `files`.
    """

    number: int
    files: list[str]
    rows: int
    empty: int
    bad: int


class Manifest:
    """The manifest of one command, which has its output folder for itself."""

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        """`origin`: the `settings`, `inputs` and `model` that finished shards depend on."""
        self._path = path
        self._origin: dict[str, Any] = json.loads(json.dumps({"version": VERSION, **origin}))  # as it is once read
        self.shards: dict[int, FinishedShard] = {}
        self.input_rows: int | None = None

    @classmethod
    def of_earlier_command(cls, path: Path, origin: Mapping[str, Any]) -> "Manifest | None":
        """The manifest of an earlier command, None if there is none. Raises Failed where its origin differs."""
        if not path.exists():
            return None
        manifest = cls(path, origin)
        try:
            content = json.loads(path.read_text())
            shards = [FinishedShard(**shard) for shard in content["shards"]]
            manifest.input_rows = content["input_rows"]
            difference = _difference(content, manifest._origin)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failed(f"--output: {path} is no manifest of this command: {error!r}; --restart begins anew") from None
        if difference:
            raise Failed(f"--output: {path.parent} was begun with {difference}; --restart throws its shards away")
        manifest.shards = {shard.number: shard for shard in shards}
        return manifest

    def add_shard(self, shard: FinishedShard) -> None:
        """Records a shard whose files are published. Raises OSError."""
        self.shards[shard.number] = shard
        self.save()

    def complete(self, input_rows: int) -> None:
        """Records that all shards are finished, and the number of rows of the input. Raises OSError."""
        self.input_rows = input_rows
        self.save()

    def save(self) -> None:
        """Replaces the file. Raises OSError; the older file stays then."""
        shards = [asdict(self.shards[number]) for number in sorted(self.shards)]
        content = {**self._origin, "input_rows": self.input_rows, "shards": shards}
        draft = Draft(self._path)
        try:
            draft.stream.write(json.dumps(content, indent=1).encode())
            publish_all(self._path.parent, [draft])
        except OSError:
            draft.discard()
            raise


def lock(path: Path) -> Any:
    """Locks a manifest for one command as long as the result lives. Raises Failed where another one has it."""
    stream = path.with_name(f".{path.name}.lock").open("w")
    try:
        import fcntl
    except ImportError:  # this system has no such locks
        return stream
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise Failed(f"--output: another command is writing to {path.parent}") from None
    except OSError:  # a file system without locks
        pass
    return stream


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between two origins, in words; empty where there is none."""
    if before.get("version") != now["version"]:
        return f"another version of this command ({before.get('version')})"
    for flag in {**before["settings"], **now["settings"]}:
        value, new_value = before["settings"].get(flag), now["settings"].get(flag)
        if value != new_value:
            return f"other settings: {flag} was {json.dumps(value)}, now it is {json.dumps(new_value)}"
    files, new_files = before["inputs"], now["inputs"]
    if [file["path"] for file in files] != [file["path"] for file in new_files]:
        return f"other inputs: {len(files)} files then, {len(new_files)} now, not all the same"
    for file, new_file in zip(files, new_files, strict=True):
        if file != new_file:
            return f"another {new_file['path']}: its contents have changed"
    if before["model"] != now["model"]:
        models = (f"{model['id']} ({model['fingerprint'][:16]})" for model in (before["model"], now["model"]))
        return "another model: it was {}, now it is {}".format(*models)
    return ""
