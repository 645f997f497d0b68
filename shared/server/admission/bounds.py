"""The limits of admission."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of what a process handles at the same time.

    `requests`: requests, from their first byte to their last; `size`: bytes of requests that have been read, but one
    request is always accepted; `results`: bytes of results that are computed or made into replies, with the same
    exception; `slow_reads`: requests that take over 10 ms to arrive; `memory`: bytes of the process above its idle
    memory, beyond which only one slow request is read on; `read_seconds`: seconds to send a request, and to read its
    reply; `unread`: bytes of replies that callers have not read; `streams`: open streams of requests; `watches`: those
    of health and reflection; `pace`: bytes a second of one caller's large requests while others ask.

    Streams may have half of `requests`, and as many bytes of requests and results as all other calls. Requests that
    are gathered from many messages may have `size` bytes once more.
    """

    requests: int = 2048
    size: int = 64 * 1024 * 1024
    results: int = 64 * 1024 * 1024
    slow_reads: int = 64
    memory: int = 64 * 1024 * 1024
    read_seconds: float = 30.0
    unread: int = 64 * 1024 * 1024
    streams: int = 64
    watches: int = 1024
    pace: float = inf
