"""Both clients: `AsyncClient`, and `Client`, whose methods block. Their calls run on one event loop of the process.

`calls.methods` makes requests and reads replies; `SplitCall` and `StreamedCall` decide what to send and when;
`Transport` sends it.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from itertools import chain
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from selvage.background import Session
from selvage.calls import methods
from selvage.calls.methods import as_method
from selvage.calls.streamed_call import END, StreamedCall
from selvage.connection import DEFAULT, ClientOptions, Settings
from selvage.messages.inputs import Operation
from selvage.transport import Transport, progress_of

P = ParamSpec("P")
R = TypeVar("R")


def awaited(
    method: Callable[Concatenate[Any, P], Operation[R]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Makes a method whose result is awaited."""

    async def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        operation = method(self, *args, **kwargs)
        with progress_of(operation) as show_progress:
            await self._transport.send(operation, show_progress)
        return operation.result()

    return as_method(run, method)


def awaited_in_turn(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["AsyncClient", P], AsyncIterator[Any]]:
    """Makes a method that yields the results of its streamed call, to be awaited."""

    def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


def blocking(method: Callable[Concatenate[Any, P], Operation[R]]) -> Callable[Concatenate["Blocking", P], R]:
    """Makes a method that returns when its operation is done."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> R:
        operation = method(self, *args, **kwargs)
        with progress_of(operation) as show_progress:
            self._session.run(self._transport.send(operation, show_progress))
        return operation.result()

    return as_method(run, method)


def in_turn(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["Blocking", P], Iterator[Any]]:
    """Makes a method that yields the results of its streamed call."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


class AsyncClient:
    """The client for asyncio: the methods of `Client`, to be awaited, and `async for` over `embed_stream`.

    It belongs to the event loop of its first call. Cancelling a task cancels its calls.
    """

    def __init__(self, target: str = DEFAULT, **options: Unpack[ClientOptions]) -> None:
        """Takes the options of `Client`. Nothing is sent yet. Raises ValueError."""
        self.settings = Settings(target=target, **options)
        self._transport = Transport(self.settings)

    embed = awaited(methods.embed)
    rerank = awaited(methods.rerank)
    score = awaited(methods.score)
    max_sim = awaited(methods.max_sim)
    classify = awaited(methods.classify)
    classify_tokens = awaited(methods.classify_tokens)
    tokenize = awaited(methods.tokenize)
    detokenize = awaited(methods.detokenize)
    model = awaited(methods.model)
    models = awaited(methods.models)
    embed_stream = awaited_in_turn(methods.embed_stream)

    async def close(self) -> None:
        """Ends calls in progress, and the connection."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.settings})"

    async def _iterate(self, streamed: StreamedCall) -> AsyncIterator[Any]:
        """Yields results while it reads texts. Raises SelvageError."""
        begun: deque[asyncio.Future[Operation[Any]]] = deque()
        try:
            async for text in _as_async(streamed.source):
                batch = streamed.add(text)
                if batch is not None:
                    begun.append(asyncio.ensure_future(self._transport.send_batch(batch, streamed.pace)))
                    for _ in range(2):  # the request leaves even where the next text takes long
                        await asyncio.sleep(0)
                while begun and (streamed.ended or len(begun) >= streamed.ahead or begun[0].done()):
                    for result in (await begun.popleft()).result():
                        yield result
                if streamed.ended:
                    return
        finally:
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            begun.clear()  # an error among them has this frame in its traceback: a cycle


async def _as_async(texts: Any) -> AsyncIterator[Any]:
    """Iterates over texts that come from an iterator or an asynchronous iterator, and then over END."""
    if hasattr(texts, "__aiter__"):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text
    yield END


class Blocking:
    """What `Client` and `Engine` have in common: the methods of `AsyncClient`, which block the calling thread."""

    def __init__(self, settings: Settings, session: Session, owner: str) -> None:
        """`session`: runs the calls, and ends with this object. `owner`: what errors call this object once closed."""
        self.settings = settings
        self._session, self._transport = session, Transport(settings, owner)
        session.call_at_end(self._transport.close)
        weakref.finalize(self, session.stop).atexit = False

    embed = blocking(methods.embed)
    rerank = blocking(methods.rerank)
    score = blocking(methods.score)
    max_sim = blocking(methods.max_sim)
    classify = blocking(methods.classify)
    classify_tokens = blocking(methods.classify_tokens)
    tokenize = blocking(methods.tokenize)
    detokenize = blocking(methods.detokenize)
    model = blocking(methods.model)
    models = blocking(methods.models)
    embed_stream = in_turn(methods.embed_stream)

    def close(self) -> None:
        """Ends calls in progress, and the connection."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"

    def _iterate(self, streamed: StreamedCall) -> Iterator[Any]:
        """Yields results while it reads texts, which it does in this thread. Raises SelvageError."""
        begun: deque[Future[Operation[Any]]] = deque()
        try:
            for text in chain(streamed.source, [END]):
                batch = streamed.add(text)
                if batch is not None:
                    begun.append(self._session.begin(self._transport.send_batch(batch, streamed.pace)))
                while begun and (streamed.ended or len(begun) >= streamed.ahead or begun[0].done()):
                    yield from self._session.result(begun.popleft()).result()
                if streamed.ended:
                    return
        finally:
            for future in begun:
                future.cancel()
            begun.clear()  # an error among them has this frame in its traceback: a cycle


class Client(Blocking):
    """A connection to a frontend, or to many behind one name.

    Threads may share it. The first call of any client starts a thread, which does not survive a fork: a process that
    forks makes its clients after the fork.
    """

    def __init__(self, target: str = DEFAULT, **options: Unpack[ClientOptions]) -> None:
        """`target`: host:port, or dns:///name:port with many addresses, which serve calls in turn.

        - `model`: the model of calls that name none; by default the only one.
        - `key`: the API key, sent as `authorization: Bearer`.
        - `tls`: True, or `TLS` with certificates of your own.
        - `timeout`: seconds for a call with all its parts and retries, by default 60; `math.inf`: as long as it takes.
        - `retries`: how often a part is sent again where the service is overloaded or unavailable, by default 5.
          Overload does not count where other parts of the call are under way, or were answered meanwhile.
        - `in_flight`: how many parts of a large input are sent at a time, by default 4; not of `embed_stream`.
        - `fairness_key`: your name to the service, which serves keys evenly.
        - `priority`: "interactive", "default" or "bulk", by default the service's.
        - `metadata`: sent with each call.

        Nothing is sent yet. Raises ValueError for values that make no sense.
        """
        super().__init__(Settings(target=target, **options), Session("client"), "client")
