"""Bytes that are there at once."""

from dataclasses import dataclass


@dataclass(slots=True)
class BytePool:
    """At most `most` bytes, but one request's always may be. What lies in it lies in the pool `of_all` too.

    `whose`: how a refusal names those whose bytes are there.
    """

    whose: str
    most: int
    of_all: "BytePool | None" = None
    held: int = 0

    def full(self, size: int, own: int = 0) -> "BytePool | None":
        """The pool that has no room for so many bytes more, None where all have. `own`: bytes of the same request."""
        if self.held > own and self.held + size > self.most:
            return self
        return self.of_all.full(size, own) if self.of_all is not None else None

    def add(self, size: int) -> None:
        """So many bytes more, or less."""
        self.held += size
        if self.of_all is not None:
            self.of_all.add(size)


@dataclass(frozen=True, slots=True)
class Pools:
    """Of those who share them."""

    requests: BytePool
    results: BytePool
