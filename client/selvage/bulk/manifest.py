"""Which shards are finished, of which inputs, with which settings and model: one JSON file, replaced as a whole.

It is the only truth: a shard's files count once it names them. So a command that was killed at any moment goes on where
the manifest ends, and what lies beside it is written again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selvage.bulk.drafts import Draft, publish
from selvage.bulk.failures import Failed

VERSION = 1
NAME = "_manifest"
"""What the names of all manifests begin with. Readers of Parquet skip such names."""


class NoManifest(ValueError):
    """A file is none, or that of another program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A finished one: `rows` have vectors, `empty` ones were left out, `bad` ones are listed in a file of `files`.

    It holds the rows number x rows_per_shard of the input and following.
    """

    number: int
    files: list[str]
    rows: int
    empty: int
    bad: int


class Manifest:
    """Of the command `index` of `count` that share an output folder."""

    def __init__(self, path: Path, told: Mapping[str, Any]) -> None:
        """`told`: `settings`, `inputs` and `model`, which a finished shard depends on."""
        self._path, self._told = path, {"version": VERSION, **told}
        self.shards: dict[int, Shard] = {}
        self.input_rows: int | None = None

    @classmethod
    def begun(cls, path: Path, told: Mapping[str, Any]) -> "Manifest | None":
        """What an earlier command has left there, None if nothing. Raises Failed where it was another command."""
        if not path.exists():
            return None
        try:
            found, shards = _read(path)
        except NoManifest as error:
            raise Failed(f"--output: {path} is no manifest of this command: {error}; --restart begins anew") from None
        manifest = cls(path, told)
        if difference := _difference(found, manifest._plain):
            raise Failed(f"--output: {path.parent} was begun with {difference}; --restart throws its shards away")
        manifest.shards = {each.number: each for each in shards}
        manifest.input_rows = found["input_rows"]
        return manifest

    def check_others(self) -> None:
        """Raises Failed where a command with another number of commands, other settings, inputs or model shares the
        folder: their shards would not fit together."""
        for path in sorted(self._path.parent.glob(f"{NAME}*.json")):
            if path == self._path:
                continue
            try:
                found, _ = _read(path)
                (before, own), (now, wanted) = _any_index(found), _any_index(self._plain)
                difference = _difference(own, wanted)
                if before != now:
                    difference = f"--shard I/{before}, not I/{now}"
            except NoManifest as error:
                difference = f"something else: {error}"
            if difference:
                told = f"--output: {path.parent} is shared with {path.name}, which was begun with {difference}"
                raise Failed(f"{told}; take another folder, or empty this one")

    def withdraw(self) -> None:
        """It was never begun. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def finished(self, shard: Shard) -> None:
        """Its files are there. Raises OSError."""
        self.shards[shard.number] = shard
        self.save()

    def complete(self, input_rows: int) -> None:
        """All shards are there. Raises OSError."""
        self.input_rows = input_rows
        self.save()

    @property
    def _plain(self) -> dict[str, Any]:
        """What it was begun with, as JSON gives it back."""
        plain: dict[str, Any] = json.loads(json.dumps(self._told))
        return plain

    def save(self) -> None:
        """Raises OSError; the older one stays then."""
        shards = [asdict(self.shards[number]) for number in sorted(self.shards)]
        whole = {**self._told, "input_rows": self.input_rows, "shards": shards}
        draft = Draft(self._path)
        try:
            draft.stream.write(json.dumps(whole, indent=1).encode())
            publish(self._path.parent, [draft])
        except OSError:
            draft.discard()
            raise


def lock(path: Path) -> Any:
    """Holds a folder for one command as long as the result lives. Raises Failed where another one runs."""
    stream = path.with_name(f".{path.name}.lock").open("w")
    try:
        import fcntl
    except ImportError:  # where there is none, nobody watches
        return stream
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise Failed(f"--output: another command is writing to {path.parent}") from None
    except OSError:  # a file system without locks
        pass
    return stream


def _read(path: Path) -> tuple[dict[str, Any], list[Shard]]:
    """A manifest and its shards. Raises NoManifest, and OSError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        _any_index(found), found["inputs"], found["model"], found["input_rows"]
        return found, [Shard(**each) for each in found["shards"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoManifest(repr(error)) from None


def _any_index(told: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """What the commands that share a folder have in common: the n of `--shard i/n`, and all but that setting."""
    settings = dict(told["settings"])
    return int(settings.pop("--shard").partition("/")[2]), {**told, "settings": settings}


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first thing that two commands do not share, in words."""
    if found.get("version") != wanted["version"]:
        return f"another version of this command ({found.get('version')})"
    for flag in {**found["settings"], **wanted["settings"]}:
        before, now = found["settings"].get(flag), wanted["settings"].get(flag)
        if before != now:
            return f"other settings: {flag} was {json.dumps(before)}, now it is {json.dumps(now)}"
    before_files, files = found["inputs"], wanted["inputs"]
    if [each["path"] for each in before_files] != [each["path"] for each in files]:
        return f"other inputs: {len(before_files)} files then, {len(files)} now, not all the same"
    for before, now in zip(before_files, files, strict=True):
        if before != now:
            return f"another {now['path']}: its contents have changed"
    model, wanted_model = found["model"], wanted["model"]
    if model != wanted_model:
        names = (f"{each['id']} ({each['fingerprint'][:16]})" for each in (model, wanted_model))
        return "another model: it was {}, now it is {}".format(*names)
    return ""
