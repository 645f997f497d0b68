"""Files that are there whole or not at all: written under another name, synced to the disk, renamed."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

SUFFIX = ".draft"
"""Of names, which also begin with a dot; what was killed leaves some behind."""


class Draft:
    """One file. `stream` is binary and can be read, written and sought; only `publish` makes the file appear."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._draft = path.with_name(f".{path.name}{SUFFIX}")
        self.stream: Any = self._draft.open("w+b")

    def sync(self) -> None:
        """Its bytes are on the disk then. Raises OSError."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def publish(self) -> None:
        """After `sync`; takes the place of an older file of that name. Raises OSError."""
        os.replace(self._draft, self.path)

    def discard(self) -> None:
        """Leaves nothing. What cannot be written any more is no error here."""
        with suppress(OSError):
            self.stream.close()
        self._draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """The names of its files are on the disk then. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(folder: Path, drafts: list[Draft]) -> None:
    """All of them, after all are on the disk. Raises OSError."""
    for draft in drafts:
        draft.sync()
    for draft in drafts:
        draft.publish()
    sync_folder(folder)
