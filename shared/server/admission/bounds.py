"""What a process lets in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be there at once.

    `requests`: from their first byte to their last; `size`: bytes of requests that are read, one always may be;
    `results`: bytes of results that are being computed or made into replies, likewise;
    `slow_reads`: of requests that take over 10 ms to arrive, and `memory`: bytes that the process may take above what
    it did at first, where one such read goes on; `read_seconds`: how long one may take, and how long its caller may
    take to read the reply; `unread`: bytes of replies that are not read yet; `streams`: of requests, that are open.
    What comes by streams has half of the requests, as many bytes of requests and of results again, and what is
    gathered from many messages as many bytes once more.
    """

    requests: int = 2048
    size: int = 64 * 1024 * 1024
    results: int = 64 * 1024 * 1024
    slow_reads: int = 64
    memory: int = 64 * 1024 * 1024
    read_seconds: float = 30.0
    unread: int = 64 * 1024 * 1024
    streams: int = 64
