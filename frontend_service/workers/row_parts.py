"""Token rows of one job on their way from the link to their reader, while the job is computed. Knows no transport."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shared.jobs import PackedBytes

PART_BYTES = 1024 * 1024
"""Most bytes of rows in a part, unless a single row has more."""
HELD_BYTES = 16 * 1024 * 1024
"""Bytes of rows that may wait for their reader; above it the worker is asked to pause."""


def bytes_at_once(size: int, tokens: int, chunk_tokens: int) -> int:
    """Most bytes of a text's rows that wait for their reader, of `size` bytes in all.

    Rows leave the worker with their piece of `chunk_tokens` tokens, and it is paused between pieces: to those that may
    wait come the piece that is too much and the next one, which has begun. A worker that cuts no texts (`chunk_tokens`
    = 0), such as an older one, sends all rows at once when the text is done.
    """
    if not chunk_tokens:
        return size
    piece = size * chunk_tokens // max(1, tokens)
    return min(size, HELD_BYTES + 2 * piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """Consecutive rows of one text: `count` of them, packed in `data`, with `scales` and token `ids` where wanted."""

    count: int
    data: bytes
    scales: bytes
    ids: bytes


class RowParts:
    """Rows of one job, in order: the link puts in their bytes as they come, cut anywhere; a reader takes whole rows.

    `begun`: whether any have come. `on_full` is called with True when too many bytes wait, and with False when they
    have been taken.
    """

    def __init__(self, row_bytes: int, scale_bytes: int = 0, id_bytes: int = 0) -> None:
        """Bytes of each row, of its scale and of its token id; 0 for no scales and no ids."""
        self._data, self._scales, self._ids = (_Bytes(width) for width in (row_bytes, scale_bytes, id_bytes))
        self._least = max(1, PART_BYTES // (row_bytes + scale_bytes + id_bytes))
        self._changed = asyncio.Event()
        self._ended = self._full = self.begun = False
        self.on_full: Callable[[bool], None] | None = None

    @property
    def held(self) -> int:
        """Bytes that wait for the reader."""
        return self._data.size + self._scales.size + self._ids.size

    def put(self, data: PackedBytes = b"", scales: PackedBytes = b"", ids: PackedBytes = b"") -> None:
        """Puts in bytes behind those of their kind."""
        self.begun = True
        self._data.add(data)
        self._scales.add(scales)
        self._ids.add(ids)
        self._changed.set()
        self._tell_full()

    def end(self) -> None:
        """Says that no more comes: the job has ended."""
        self._ended = True
        self._changed.set()

    async def take(self) -> RowPart | None:
        """Waits for a part of full size, and takes it. None where less is left of a job that has ended."""
        while self._rows < self._least:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._take(self._least)

    def take_rest(self) -> RowPart:
        """Takes all whole rows that are left, of a job that has ended: less than a part of full size."""
        return self._take(self._rows)

    @property
    def _rows(self) -> int:
        """Number of whole rows."""
        return min(kind.rows for kind in (self._data, self._scales, self._ids) if kind.width)

    def _take(self, count: int) -> RowPart:
        data, scales, ids = (kind.take(count * kind.width) for kind in (self._data, self._scales, self._ids))
        self._tell_full()
        return RowPart(count=count, data=data, scales=scales, ids=ids)

    def _tell_full(self) -> None:
        full = self.held > (HELD_BYTES // 2 if self._full else HELD_BYTES)
        if full != self._full:
            self._full = full
            if self.on_full is not None:
                self.on_full(full)


class _Bytes:
    """Bytes of one kind, `width` a row."""

    def __init__(self, width: int) -> None:
        self.width, self.size = width, 0
        self._pieces: deque[memoryview] = deque()

    @property
    def rows(self) -> int:
        return self.size // self.width

    def add(self, data: PackedBytes) -> None:
        if len(data):
            self._pieces.append(memoryview(data))
            self.size += len(data)

    def take(self, size: int) -> bytes:
        """Takes `size` bytes, in one copy."""
        self.size -= size
        taken: list[memoryview] = []
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return b"".join(taken)
