"""Windows in order -> shards. A shard's files appear together, and then the manifest says so; else it never was."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from selvage.bulk.arrow import as_text
from selvage.bulk.drafts import SUFFIX, Draft, publish
from selvage.bulk.failures import Failed
from selvage.bulk.manifest import NAME as MANIFEST
from selvage.bulk.manifest import Manifest, Shard
from selvage.bulk.row_blocks import Window
from selvage.bulk.rows import BadRow, Row
from selvage.bulk.values import columns
from selvage.results import Array

ARRAYS = r"(?:dense|sparse|multi_vector)(?:_(?:scales|ids|weights|offsets))?"
SHARD_FILE = re.compile(rf"part-(\d{{6,}})\.(?:parquet|rows\.jsonl|{ARRAYS}\.npy)|_bad-(\d{{6,}})\.jsonl")
"""Names of a shard's files, in every format."""


class Output(Protocol):
    """A shard in a format."""

    @property
    def drafts(self) -> list[Draft]: ...

    def add(self, rows: Sequence[Row], columns: dict[str, Array]) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class Shards:
    """Writes one shard after the other into a folder."""

    def __init__(
        self, folder: Path, manifest: Manifest, output: Callable[[Path, str], Output], *, skip_errors: bool
    ) -> None:
        """`output`: opens the files of a name. `skip_errors`: bad rows go to a file instead of ending the command."""
        self._folder, self._manifest, self._output, self._skip_errors = folder, manifest, output, skip_errors
        self._current: _Current | None = None

    @property
    def finished(self) -> frozenset[int]:
        """Shards that the manifest names."""
        return frozenset(self._manifest.shards)

    def add(self, window: Window) -> None:
        """Raises Failed for a bad row that is not to be skipped, and where nothing can be written."""
        bad = window.bad_rows()
        if bad and not self._skip_errors:
            raise Failed(f"{bad[0]} (--skip-errors leaves such rows out and lists them)")
        if self._current is not None and self._current.shard != window.shard:
            self.finish()
        if self._current is None:
            self._current = _Current(window.shard, self._folder, self._output)
        try:
            self._current.add(window, bad)
        except OSError as error:
            raise self._unwritten(error) from error

    def finish(self) -> None:
        """The shard that was begun is whole. Raises Failed."""
        if self._current is None:
            return
        try:
            files = self._current.publish()
            shard, self._current = self._current, None
            self._manifest.finished(
                Shard(number=shard.shard, files=files, rows=shard.rows, empty=shard.empty, bad=shard.bad)
            )
        except OSError as error:
            raise self._unwritten(error) from error

    def complete(self, input_rows: int) -> None:
        """Nothing more comes, of an input of so many rows. Raises Failed."""
        self.finish()
        try:
            self._manifest.complete(input_rows)
        except OSError as error:
            raise self._unwritten(error) from error

    def discard(self) -> None:
        """Of what is not whole nothing stays."""
        if self._current is not None:
            self._current.discard()

    def _unwritten(self, error: OSError) -> Failed:
        count = len(self._manifest.shards)
        return Failed(
            f"--output: {self._folder} cannot be written: {error.strerror or error}. {count} finished shards stay; the "
            "same command goes on after them"
        )


class _Current:
    """The shard that is being written."""

    def __init__(self, shard: int, folder: Path, output: Callable[[Path, str], Output]) -> None:
        self.shard = shard
        self._folder, self._open = folder, output
        self.rows = self.empty = self.bad = 0
        self._output: Output | None = None
        self._bad: Draft | None = None

    @property
    def drafts(self) -> list[Draft]:
        return [*(self._output.drafts if self._output else []), *([self._bad] if self._bad else [])]

    def add(self, window: Window, bad: list[BadRow]) -> None:
        rows, values = window.good()
        self.empty += window.empty
        if rows:
            if self._output is None:
                self._output = self._open(self._folder, f"part-{self.shard:06d}")
            self._output.add(rows, columns(values))
            self.rows += len(rows)
        for each in bad:
            if self._bad is None:
                self._bad = Draft(self._folder / f"_bad-{self.shard:06d}.jsonl")
            told = {"row": each.number, "file": each.path, "line": each.line, "id": each.id, "reason": each.reason}
            self._bad.stream.write(json.dumps(told, default=as_text).encode() + b"\n")
            self.bad += 1

    def publish(self) -> list[str]:
        """Names of the files, which are there now."""
        if self._output is not None:
            self._output.finish()
        publish(self._folder, self.drafts)
        return [draft.path.name for draft in self.drafts]

    def discard(self) -> None:
        if self._output is not None:
            self._output.discard()
        if self._bad is not None:
            self._bad.discard()


def sweep(folder: Path, mine: Callable[[int], bool]) -> None:
    """Removes what a killed command has left of shards that are `mine`."""
    for path in folder.glob(f".*{SUFFIX}"):
        number = _number(path.name.removeprefix(".").removesuffix(SUFFIX))
        if number is not None and mine(number):
            path.unlink(missing_ok=True)


def published(folder: Path, mine: Callable[[int], bool]) -> list[Path]:
    """Files of shards that are `mine`."""
    return sorted(path for path in folder.iterdir() if (number := _number(path.name)) is not None and mine(number))


def is_output(name: str) -> bool:
    """Whether the command gives files such names."""
    return _number(name) is not None or re.fullmatch(rf"{MANIFEST}(-\d+-of-\d+)?\.json", name) is not None


def _number(name: str) -> int | None:
    """Of a shard, from the name of a file; None where the file is somebody else's, such as `part-000003.faiss`."""
    found = SHARD_FILE.fullmatch(name)
    return int(found[1] or found[2]) if found else None
