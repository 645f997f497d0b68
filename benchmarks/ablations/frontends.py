"""Three ways of a frontend to tokenise a text and to finish its rows: on the event loop, in threads, in batches."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from frontend_service import packing
from frontend_service.requests import Cut
from frontend_service.tokenization import Tokenization
from shared.vectors import DataType

MOST = 64
"""Texts in a batch."""
A = TypeVar("A")
R = TypeVar("R")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is done for a request, a list at a time: texts -> ids, and token rows [n, W] -> int8 bytes with scales."""

    tokenization: Tokenization

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """As every request of the service is."""
        found = self.tokenization.each(texts, "", Cut(truncate=True), "texts[{}]", lambda _: None)
        return [each.encoding.ids for each in found]

    def finish(self, rows: Sequence[Floats]) -> list[bytes]:
        """As a frontend packs rows that it has pooled."""
        packed = (packing.pack(each, DataType.INT8) for each in rows)
        return [each.data + each.scales for each in packed]


class Frontend(Protocol):
    """What a call goes through, before the worker and after."""

    async def tokenize(self, text: str) -> list[int]: ...

    async def finish(self, rows: Floats) -> bytes: ...


class Inline:
    """On the event loop, as `Service.tokenising` does with few letters: nothing is handed over."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def tokenize(self, text: str) -> list[int]:
        return self._work.tokenize([text])[0]

    async def finish(self, rows: Floats) -> bytes:
        return self._work.finish([rows])[0]


class Threads:
    """Each by itself in a pool, as `Service.tokenising` does with many letters."""

    def __init__(self, work: Work, threads: Executor) -> None:
        self._work, self._threads = work, threads

    async def tokenize(self, text: str) -> list[int]:
        return (await asyncio.get_running_loop().run_in_executor(self._threads, self._work.tokenize, [text]))[0]

    async def finish(self, rows: Floats) -> bytes:
        return (await asyncio.get_running_loop().run_in_executor(self._threads, self._work.finish, [rows]))[0]


class Batches:
    """What arrives within a tick goes to a thread together."""

    def __init__(self, work: Work, threads: Executor, tick: float) -> None:
        """`tick` in seconds; 0 takes what came in one turn of the event loop or while the last batch was under way."""
        self._texts = Batching(work.tokenize, threads, tick)
        self._rows = Batching(work.finish, threads, tick)

    async def tokenize(self, text: str) -> list[int]:
        return await self._texts.ask(text)

    async def finish(self, rows: Floats) -> bytes:
        return await self._rows.ask(rows)


class Batching(Generic[A, R]):
    """Arguments wait here for their batch; one batch is under way at a time."""

    def __init__(self, work: Callable[[Sequence[A]], list[R]], threads: Executor, tick: float) -> None:
        self._work, self._threads, self._tick = work, threads, tick
        self._waiting: list[tuple[A, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, argument: A) -> R:
        """The outcome of one argument; raises what its batch raised."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(self._tick)
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            try:
                done = await loop.run_in_executor(self._threads, self._work, [argument for argument, _ in batch])
                for (_, answer), outcome in zip(batch, done, strict=True):
                    answer.set_result(outcome)
            except Exception as error:  # whatever it is belongs to those who wait
                for _, answer in batch:
                    answer.set_exception(error)
        self._running = None
