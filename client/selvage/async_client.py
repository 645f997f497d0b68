"""The client for asyncio.

`calls.methods` makes requests and reads replies; `SplitCall` and `StreamedCall` decide what to send and when;
`Transport` sends it.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from selvage.calls import methods
from selvage.calls.methods import as_method
from selvage.calls.progress import progress_shown
from selvage.calls.streamed_call import StreamedCall
from selvage.connection import DEFAULT, ClientOptions, Settings
from selvage.messages.inputs import Operation
from selvage.transport import EmbeddingStream, Transport

P = ParamSpec("P")
R = TypeVar("R")


def awaited(
    method: Callable[Concatenate[Any, P], Operation[R]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, R]]:
    """Makes a method whose result is awaited."""

    async def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["AsyncClient", P], AsyncIterator[Any]]:
    """Makes a method that yields the results of its streamed call."""

    def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


class AsyncClient:
    """The client for asyncio: the methods of `Client`, to be awaited, and `async for` over `embed_stream`.

    It belongs to the event loop of its first call. Cancelling a task cancels its calls.
    """

    def __init__(self, target: str = DEFAULT, **options: Unpack[ClientOptions]) -> None:
        """Takes the options of `Client`. Nothing is sent yet. Raises ValueError."""
        self.settings = Settings.of(target, **options)
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
    embed_stream = iterating(methods.embed_stream)

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

    async def _run(self, operation: Operation[R]) -> R:
        with progress_shown(operation.size, operation.progress) as show_progress:
            split_call = self._transport.split(operation, show_progress)
            await self._transport.send_all(split_call)
            return split_call.result()

    async def _iterate(self, streamed: StreamedCall) -> AsyncIterator[Any]:
        """Yields results while it reads texts. Raises SelvageError."""
        source = _as_async(streamed.source)
        stream: EmbeddingStream | None = None
        try:
            while True:
                for result in streamed.ready_results():
                    yield result
                if streamed.done:
                    return
                if streamed.wants_text:
                    try:
                        streamed.add_text(await anext(source))
                    except StopAsyncIteration:
                        streamed.end_texts()
                stream = await self._transport.advance(streamed, stream)
        finally:
            if stream is not None:
                await stream.close(cancel=not streamed.done)


async def _as_async(texts: Any) -> AsyncIterator[Any]:
    """Iterates over texts that come from an iterator or an asynchronous iterator."""
    if hasattr(texts, "__aiter__"):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text
