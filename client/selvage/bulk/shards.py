"""Blocks of rows, in order -> shards. A shard's files appear together, and then the manifest names them."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from selvage.bulk.arrow import as_text
from selvage.bulk.drafts import SUFFIX, Draft, publish_all
from selvage.bulk.failures import Failed
from selvage.bulk.manifest import NAME as MANIFEST
from selvage.bulk.manifest import FinishedShard, Manifest
from selvage.bulk.row_blocks import RowBlock
from selvage.bulk.rows import BadRow, Row
from selvage.bulk.values import columns
from selvage.results import Array

ARRAYS = r"(?:dense|sparse|multi_vector)(?:_(?:scales|ids|weights|offsets))?"
SHARD_FILE = re.compile(rf"part-(\d{{6,}})\.(?:parquet|rows\.jsonl|{ARRAYS}\.npy)|_bad-(\d{{6,}})\.jsonl")
"""Names of a shard's files, in every format."""


class ShardFiles(Protocol):
    """The files of one shard with the rows that have vectors, in one of the formats. All methods raise OSError."""

    @property
    def drafts(self) -> list[Draft]: ...

    def add_rows(self, rows: Sequence[Row], columns: dict[str, Array]) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...


class Shards:
    """Writes one shard after the other into a folder."""

    def __init__(
        self, folder: Path, manifest: Manifest, open_files: Callable[[Path, str], ShardFiles], *, skip_errors: bool
    ) -> None:
        """`open_files`: opens the files of a shard by its name. `skip_errors`: list bad rows in a file, and go on."""
        self._folder, self._manifest, self._open_files, self._skip_errors = folder, manifest, open_files, skip_errors
        self._current: _OpenShard | None = None

    @property
    def finished(self) -> frozenset[int]:
        """Numbers of the shards that the manifest names."""
        return frozenset(self._manifest.shards)

    def add_block(self, block: RowBlock) -> None:
        """Writes a block of rows. Raises Failed for a bad row that is not skipped, and where nothing can be written."""
        bad = block.bad_rows()
        if bad and not self._skip_errors:
            raise Failed(f"{bad[0]} (--skip-errors leaves such rows out and lists them)")
        if self._current is not None and self._current.number != block.shard:
            self._finish_shard()
        if self._current is None:
            self._current = _OpenShard(block.shard, self._folder, self._open_files)
        try:
            self._current.add_block(block, bad)
        except OSError as error:
            raise self._unwritten(error) from error

    def complete(self, input_rows: int) -> None:
        """Finishes the last shard; the whole input had `input_rows`. Raises Failed."""
        self._finish_shard()
        try:
            self._manifest.complete(input_rows)
        except OSError as error:
            raise self._unwritten(error) from error

    def discard(self) -> None:
        """Removes the files of a shard that is not whole."""
        if self._current is not None:
            self._current.discard()

    def _finish_shard(self) -> None:
        """Publishes the shard that is being written, and records it in the manifest. Raises Failed."""
        if self._current is None:
            return
        try:
            files = self._current.publish()
            shard, self._current = self._current, None
            self._manifest.add_shard(
                FinishedShard(number=shard.number, files=files, rows=shard.rows, empty=shard.empty, bad=shard.bad)
            )
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> Failed:
        count = len(self._manifest.shards)
        return Failed(
            f"--output: {self._folder} cannot be written: {error.strerror or error}. {count} finished shards stay; the "
            "same command goes on after them"
        )


class _OpenShard:
    """The shard that is being written, with the numbers of its rows so far."""

    def __init__(self, number: int, folder: Path, open_files: Callable[[Path, str], ShardFiles]) -> None:
        self.number = number
        self._folder, self._open_files = folder, open_files
        self.rows = self.empty = self.bad = 0
        self._files: ShardFiles | None = None
        self._bad_rows: Draft | None = None

    @property
    def drafts(self) -> list[Draft]:
        return [*(self._files.drafts if self._files else []), *([self._bad_rows] if self._bad_rows else [])]

    def add_block(self, block: RowBlock, bad: list[BadRow]) -> None:
        rows, values = block.good_rows()
        self.empty += block.empty
        if rows:
            if self._files is None:
                self._files = self._open_files(self._folder, f"part-{self.number:06d}")
            self._files.add_rows(rows, columns(values))
            self.rows += len(rows)
        for row in bad:
            if self._bad_rows is None:
                self._bad_rows = Draft(self._folder / f"_bad-{self.number:06d}.jsonl")
            record = {"row": row.number, "file": row.path, "line": row.line, "id": row.id, "reason": row.reason}
            self._bad_rows.stream.write(json.dumps(record, default=as_text).encode() + b"\n")
            self.bad += 1

    def publish(self) -> list[str]:
        """Makes the files appear, and returns their names."""
        if self._files is not None:
            self._files.finish()
        publish_all(self._folder, self.drafts)
        return [draft.path.name for draft in self.drafts]

    def discard(self) -> None:
        if self._files is not None:
            self._files.discard()
        if self._bad_rows is not None:
            self._bad_rows.discard()


def remove_drafts(folder: Path, is_ours: Callable[[int], bool]) -> None:
    """Removes the drafts that a killed command has left of shards with a number for which `is_ours`."""
    for path in folder.glob(f".*{SUFFIX}"):
        number = _shard_number(path.name.removeprefix(".").removesuffix(SUFFIX))
        if number is not None and is_ours(number):
            path.unlink(missing_ok=True)


def published_files(folder: Path, is_ours: Callable[[int], bool]) -> list[Path]:
    """Files of shards with a number for which `is_ours`."""
    return sorted(
        path for path in folder.iterdir() if (number := _shard_number(path.name)) is not None and is_ours(number)
    )


def is_output_name(name: str) -> bool:
    """Whether a name is one that the command gives to its files."""
    return _shard_number(name) is not None or re.fullmatch(rf"{MANIFEST}(-\d+-of-\d+)?\.json", name) is not None


def _shard_number(name: str) -> int | None:
    """The number of the shard that a file belongs to, by its name; None for other files, as `part-000003.faiss`."""
    match = SHARD_FILE.fullmatch(name)
    return int(match[1] or match[2]) if match else None
