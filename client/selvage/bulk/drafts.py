"""Files that appear whole or not at all: written under another name, synced to the disk, then renamed."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

SUFFIX = ".draft"
"""What names of drafts end with; they begin with a dot. A command that is killed leaves drafts behind."""


class Draft:
    """A file in the making. `stream` is binary and can be read, written and sought. `publish` makes the file appear."""

    def __init__(self, path: Path) -> None:
        """Creates the draft. Raises OSError."""
        self.path = path
        self._draft = path.with_name(f".{path.name}{SUFFIX}")
        self.stream: Any = self._draft.open("w+b")

    def sync(self) -> None:
        """Waits until the draft's bytes are on the disk, and closes it. Raises OSError."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def publish(self) -> None:
        """Gives the draft, after `sync`, the file's name, in place of an older file. Raises OSError."""
        os.replace(self._draft, self.path)

    def discard(self) -> None:
        """Removes the draft. That its last bytes cannot be written is no error here."""
        with suppress(OSError):
            self.stream.close()
        self._draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Waits until the names of a folder's files are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_all(folder: Path, drafts: list[Draft]) -> None:
    """Publishes drafts in a folder once all of them are on the disk. Raises OSError."""
    for draft in drafts:
        draft.sync()
    for draft in drafts:
        draft.publish()
    sync_folder(folder)
