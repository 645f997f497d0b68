"""Calls that go on while containers come and go, and what became of them."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from selvage import Client, SelvageError
from selvage.v1 import embedding_pb2, embedding_pb2_grpc

PAUSE = 0.05
"""Seconds between a caller's calls: this is about losing calls, not about speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    began: float
    ended: float
    retried: bool
    error: str


class Callers:
    """Two callers that ask again where they are told to, two that do not, and one open stream."""

    def __init__(self, address: str) -> None:
        self._address, self._calls, self._done = address, list[Call](), threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(retries,)) for retries in (5, 5, 0, 0)]
        self._threads.append(threading.Thread(target=self._stream))
        self._echoes: list[float] = []
        self._streams = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _call(self, retries: int) -> None:
        with Client(self._address, retries=retries, timeout=30) as client:
            number = 0
            while not self._done.wait(PAUSE):
                began, error, number = time.monotonic(), "", number + 1
                try:
                    client.embed(f"boats in harbour {number}")
                except SelvageError as raised:
                    error = type(raised).__name__
                ended = time.monotonic()
                self._calls.append(Call(began=began, ended=ended, retried=retries > 0, error=error))

    def _stream(self) -> None:
        """One text at a time, each answer before the next; begun again where it breaks."""
        answered = threading.Semaphore(0)
        sent = 0.0

        def batches() -> Iterator[Any]:
            nonlocal sent
            number = 0
            while not self._done.wait(0.2):
                number, sent = number + 1, time.monotonic()
                request = embedding_pb2.EmbedRequest(texts=[f"a stream's text {number}"])
                yield embedding_pb2.EmbedStreamRequest(id=number, request=request)
                answered.acquire()

        with grpc.insecure_channel(self._address) as channel:
            stub: Any = embedding_pb2_grpc.EmbeddingServiceStub(channel)
            while not self._done.is_set():
                self._streams += 1
                try:
                    for _ in stub.EmbedStream(batches()):
                        self._echoes.append(time.monotonic() - sent)
                        answered.release()
                except grpc.RpcError:
                    answered.release()
                    self._done.wait(0.5)

    def _since(self, mark: float) -> list[Call]:
        return [call for call in list(self._calls) if call.ended >= mark]

    def lost(self, mark: float) -> list[str]:
        """Errors since then of callers that ask again."""
        return [call.error for call in self._since(mark) if call.retried and call.error]

    def told(self, mark: float) -> str:
        """What became of the calls since then."""
        calls = self._since(mark)
        without = Counter(call.error for call in calls if not call.retried and call.error)
        longest = max((call.ended - call.began for call in calls if call.retried), default=0.0)
        return (
            f"{len(calls)} calls; with retries {len(self.lost(mark))} lost, the longest took {longest:.1f} s; "
            f"without retries {without.total()} lost{f' ({dict(without)})' if without else ''}"
        )

    def stream_told(self) -> str:
        middle = sorted(self._echoes)[len(self._echoes) // 2]
        answered = f"{len(self._echoes)} texts answered one by one, {middle * 1e3:.0f} ms each (median)"
        return f"{answered}, begun {self._streams} times"
