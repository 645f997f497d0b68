"""The client whose methods block: those of `AsyncClient`, run on an event loop in a thread of the client's own."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from selvage.calls import methods
from selvage.calls.progress import progress_shown
from selvage.calls.signatures import as_method
from selvage.calls.split_call import Operation
from selvage.calls.streamed_call import StreamedCall
from selvage.connection import TLS, Settings
from selvage.loop_thread import LoopThread
from selvage.transport import EmbeddingStream, Transport

P = ParamSpec("P")
R = TypeVar("R")


def blocking(method: Callable[Concatenate[Any, P], Operation[R]]) -> Callable[Concatenate["Blocking", P], R]:
    """Makes a method that returns when its operation is done."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self, *args, **kwargs))

    return as_method(run, method)


def iterating(
    method: Callable[Concatenate[Any, P], StreamedCall],
) -> Callable[Concatenate["Blocking", P], Iterator[Any]]:
    """Makes a method that yields the results of its streamed call."""

    def run(self: "Blocking", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
        return self._iterate(method(self, *args, **kwargs))

    return as_method(run, method)


class Blocking:
    """What `Client` and `Engine` have in common: methods that block. Threads may share it."""

    def __init__(self, settings: Settings, loop: LoopThread, owner: str) -> None:
        """`loop`: runs the calls, and ends with this object. `owner`: what errors call this object once it is closed.

        Raises ValueError for a target that makes no sense.
        """
        self.settings = settings
        self._loop, self._transport = loop, Transport(settings, owner)
        loop.call_at_end(self._transport.close)
        weakref.finalize(self, loop.stop).atexit = False

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
    embed_stream = iterating(methods.embed_stream)

    def close(self) -> None:
        """Ends calls in progress, and the connection."""
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.settings})"

    def _run(self, operation: Operation[R]) -> R:
        with progress_shown(operation.size, operation.progress) as show_progress:
            split_call = self._transport.split(operation, show_progress)
            self._loop.run(self._transport.send_all(split_call))
            return split_call.result()

    def _iterate(self, streamed: StreamedCall) -> Iterator[Any]:
        """Yields results while it reads texts, which it does in this thread. Raises SelvageError."""
        source = iter(streamed.source)
        stream: EmbeddingStream | None = None
        try:
            while True:
                yield from streamed.ready_results()
                if streamed.done:
                    return
                if streamed.wants_text:
                    try:
                        streamed.add_text(next(source))
                    except StopIteration:
                        streamed.end_texts()
                if not streamed.only_reads or (stream is not None and stream.has_events):
                    stream = self._loop.run(self._transport.advance(streamed, stream))
        finally:
            if stream is not None:
                self._loop.finish(stream.close(cancel=not streamed.done))


class Client(Blocking):
    """A connection to a frontend, or to many behind one name.

    Threads may share it. Its first call starts a thread, which does not survive a fork: a process that forks makes its
    clients after the fork.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        model: str = "",
        key: str = "",
        tls: TLS | bool = False,
        timeout: float = 60.0,
        retries: int = 5,
        in_flight: int = 4,
        fairness_key: str = "",
        priority: str = "",
        metadata: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """`target`: host:port, or dns:///name:port with many addresses, which serve calls in turn.

        - `model`: the model of calls that name none; empty: the only one.
        - `key`: the API key, sent as `authorization: Bearer`.
        - `tls`: True, or `TLS` with certificates of your own.
        - `timeout`: seconds for a call, including all its parts and retries; `math.inf`: as long as it takes.
        - `retries`: how often a part is sent again where the service is overloaded or unavailable; 0: never.
        - `in_flight`: how many parts of a large input are sent at a time.
        - `fairness_key`: your name to the service, which serves keys evenly.
        - `priority`: "interactive", "default" or "bulk".
        - `metadata`: sent with each call.

        Nothing is sent yet. Raises ValueError for values that make no sense.
        """
        settings = Settings.of(
            target,
            model=model,
            key=key,
            tls=tls,
            timeout=timeout,
            retries=retries,
            in_flight=in_flight,
            fairness_key=fairness_key,
            priority=priority,
            metadata=metadata,
        )
        super().__init__(settings, LoopThread("client"), "client")
