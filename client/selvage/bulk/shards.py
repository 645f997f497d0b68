"""Embedded rows, in order -> shards; and the manifest: which shards are finished, of which inputs, settings and model.

A shard's files appear together, and count as finished once the manifest names them. So a command that was killed
continues where the manifest ends, and writes files anew that the manifest does not name.
"""

import fcntl
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from selvage.bulk import Failed
from selvage.bulk.files import SHARD_FILE
from selvage.bulk.flags import BulkOptions
from selvage.bulk.sender import EMPTY

SUFFIX = ".draft"
"""What names of drafts end with; they begin with a dot. A command that is killed leaves drafts behind."""
VERSION = 1


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


class Shards:
    """Writes one shard after the other into a folder."""

    def __init__(self, options: BulkOptions, manifest: Manifest, place_of: Callable[[int], tuple[str, int]]) -> None:
        """`place_of`: tells the file of a row and its number there."""
        self._folder, self._options, self._manifest, self._place_of = options.output, options, manifest, place_of
        self._current: _OpenShard | None = None

    def add_rows(self, rows: Any, reasons: Sequence[str | None], vectors: Any) -> None:
        """Writes neighbouring rows.

        `rows`: a pyarrow.Table with the columns `row`, `id` and the copied ones. `reasons`: why a row has no vector,
        None where it has one. `vectors`: those of the rows that have some, in order; None where there are none.
        Raises Failed for a bad row that is not skipped, and where nothing can be written.
        """
        numbers, written = rows["row"].to_pylist(), 0
        shard_of = [number // self._options.rows_per_shard for number in numbers]
        for shard, places in groupby(range(len(numbers)), shard_of.__getitem__):
            good = []
            with self._failures_named():
                current = self._shard(shard)
                for place in places:
                    if (reason := reasons[place]) is None:
                        good.append(place)
                    elif reason == EMPTY:
                        current.empty += 1
                    else:
                        current.add_bad_row(self._bad_row(rows, place, reason))
                if good:
                    table = rows.take(good)
                    for name in vectors.column_names:
                        table = table.append_column(name, vectors[name].slice(written, len(good)))
                    current.add_table(table)
            written += len(good)

    def complete(self, input_rows: int) -> None:
        """Finishes the last shard; the whole input had `input_rows`. Raises Failed."""
        with self._failures_named():
            self._finish_shard()
            self._manifest.complete(input_rows)

    def discard(self) -> None:
        """Removes the files of a shard that is not whole."""
        if self._current is not None:
            self._current.discard()

    def _shard(self, number: int) -> "_OpenShard":
        """The shard that is being written; the one before is finished. Raises OSError."""
        if self._current is not None and self._current.number != number:
            self._finish_shard()
        if self._current is None:
            self._current = _OpenShard(number, self._folder)
        return self._current

    def _finish_shard(self) -> None:
        """Publishes the shard that is being written, and records it in the manifest. Raises OSError."""
        if self._current is not None:
            finished, self._current = self._current.publish(), None
            self._manifest.add_shard(finished)

    def _bad_row(self, rows: Any, place: int, reason: str) -> dict[str, Any]:
        """A bad row as it is listed. Raises Failed where bad rows are not skipped."""
        number = rows["row"][place].as_py()
        path, file_row = self._place_of(number)
        if not self._options.skip_errors:
            raise Failed(f"{path}, row {file_row}: {reason} (--skip-errors leaves such rows out and lists them)")
        row_id = None
        if self._options.columns.id:
            with suppress(ValueError):  # a string that is no UTF-8, or a time that Python cannot hold
                row_id = rows["id"][place].as_py()
        return {"row": number, "file": path, "file_row": file_row, "id": row_id, "reason": reason}

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Raises Failed with the folder in place of OSError, and of what pyarrow raises."""
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            count, fault = len(self._manifest.shards), getattr(error, "strerror", None) or error
            raise Failed(
                f"--output: {self._folder} cannot be written: {fault}. {count} finished shards stay; "
                "the same command goes on after them"
            ) from error


class _OpenShard:
    """The shard that is being written, with the numbers of its rows so far. All methods raise OSError."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self._folder = folder
        self.rows = self.empty = self.bad = 0
        self._vectors: Draft | None = None
        self._bad_rows: Draft | None = None
        self._writer: Any = None

    def add_table(self, table: Any) -> None:
        """Writes rows that have vectors as a group of rows."""
        import pyarrow.parquet

        if self._vectors is None:
            self._vectors = Draft(self._folder / f"part-{self.number:06d}.parquet")
            plain = table.column_names[: table.column_names.index("tokens")]
            compression = dict.fromkeys(plain, "zstd")  # vectors do not get smaller
            self._writer = pyarrow.parquet.ParquetWriter(
                self._vectors.stream, table.schema, compression=compression, use_dictionary=False
            )
        self._writer.write_table(table)
        self.rows += len(table)

    def add_bad_row(self, record: dict[str, Any]) -> None:
        """Lists a row that has no vector."""
        if self._bad_rows is None:
            self._bad_rows = Draft(self._folder / f"_bad-{self.number:06d}.jsonl")
        self._bad_rows.stream.write(json.dumps(record, default=_as_text).encode() + b"\n")
        self.bad += 1

    def publish(self) -> FinishedShard:
        """Makes the files appear."""
        if self._writer is not None:
            self._writer.close()
        publish_all(self._folder, self._drafts)
        files = [draft.path.name for draft in self._drafts]
        return FinishedShard(number=self.number, files=files, rows=self.rows, empty=self.empty, bad=self.bad)

    def discard(self) -> None:
        """Removes the files."""
        if self._writer is not None:
            self._writer.is_open = False  # or it would write the file's end to a closed stream when it is collected
        for draft in self._drafts:
            draft.discard()

    @property
    def _drafts(self) -> list[Draft]:
        return [draft for draft in (self._vectors, self._bad_rows) if draft is not None]


def remove_drafts(folder: Path) -> None:
    """Removes the drafts that a killed command has left."""
    for path in folder.glob(f".*{SUFFIX}"):
        if SHARD_FILE.fullmatch(path.name.removeprefix(".").removesuffix(SUFFIX)):
            path.unlink(missing_ok=True)


def published_files(folder: Path) -> dict[Path, int]:
    """The files of shards, and the number of the shard of each."""
    matches = {path: SHARD_FILE.fullmatch(path.name) for path in sorted(folder.iterdir())}
    return {path: int(match[1] or match[2]) for path, match in matches.items() if match}


def _as_text(value: Any) -> str:
    """A value that JSON cannot write as text: a date, a decimal, bytes as base64."""
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
