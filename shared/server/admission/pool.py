"""Limits of bytes that several requests share."""

from dataclasses import dataclass

SMALL, ROOM_FOR_SMALL = 64, 4
"""A request of at most a 64th of a pool is small. Small ones have room of their own, a quarter more than the pool: one
caller's largest request, which may take all of the pool, refuses no small ones of others."""


@dataclass(slots=True)
class BytePool:
    """At most `most` bytes, but one request is always accepted. Its bytes are counted in the pool `of_all` too.

    `whose`: words of a refusal for the requests that hold the bytes.
    """

    whose: str
    most: int
    of_all: "BytePool | None" = None
    held: int = 0

    def full(self, size: int, holder: int = 0) -> "BytePool | None":
        """Returns the pool without room for `size` more bytes, or None. `holder`: bytes that the same request holds."""
        most = self.most + self.most // ROOM_FOR_SMALL if holder + size <= self.most // SMALL else self.most
        if self.held > holder and self.held + size > most:
            return self
        return self.of_all.full(size, holder) if self.of_all is not None else None

    def add(self, size: int) -> None:
        """Adds `size` bytes, or removes them if negative."""
        self.held += size
        if self.of_all is not None:
            self.of_all.add(size)


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of requests and of results that the same callers share."""

    requests: BytePool
    results: BytePool
