"""How both clients send: the attempts of split calls, over one channel of an event loop."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from selvage.calls.split_call import Attempt, Pace, RetryPolicy, SplitCall
from selvage.connection import Settings
from selvage.errors import Cancelled, InvalidInput, from_call
from selvage.messages.embedding import Embed
from selvage.messages.inputs import Operation
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2

RPCS: dict[type[Any], tuple[str, Callable[[bytes], Any]]] = {
    GetMessageClass(method.input_type): (
        f"/{service.full_name}/{method.name}",
        GetMessageClass(method.output_type).FromString,
    )
    for contract in (embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
    for service in contract.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not method.client_streaming
}
"""The rpcs of the public contract that the clients call, by the class of their request: the path, and the function that
parses a reply. Read from the descriptors of the contract."""


class Transport:
    """A channel that the first call opens, because it belongs to the event loop that runs then."""

    def __init__(self, settings: Settings, owner: str = "client") -> None:
        """`owner`: what errors call the object that is closed."""
        self._settings, self._owner = settings, owner
        self._retries = RetryPolicy(settings.retries)
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._methods: dict[type[Any], Callable[..., Any]] = {}
        self._closed = False

    async def close(self) -> None:
        """Ends calls in progress, and the connection."""
        self._closed = True
        channel, self._channel = self._channel, None
        self._methods.clear()
        if channel is not None:
            await channel.close()

    async def send(
        self,
        operation: Operation[Any],
        show_progress: Callable[[int], object] = lambda _: None,
        pace: Pace | None = None,
    ) -> None:
        """Sends the requests of an operation, several at a time, until all are answered.

        `show_progress`: called with the number of new results. `pace`: that of the stream of which the operation is a
        batch. Raises SelvageError.
        """
        seconds = self._settings.timeout if operation.seconds is None else operation.seconds
        await self._send_all(
            SplitCall(operation, seconds=seconds, retries=self._retries, pace=pace, show_progress=show_progress)
        )

    async def send_batch(self, batch: Embed | InvalidInput, pace: Pace) -> Embed:
        """Sends a batch of a stream, and returns it once it is answered. Raises SelvageError, or the batch if it is an
        error. `pace`: that of the stream."""
        if isinstance(batch, InvalidInput):
            raise batch
        await self.send(batch, pace=pace)
        return batch

    async def _send_all(self, call: SplitCall) -> None:
        in_progress: set[asyncio.Task[None]] = set()
        most = self._settings.in_flight
        try:
            while True:
                attempts: list[Attempt] = []
                while len(in_progress) + len(attempts) < most and (attempt := call.next_attempt()) is not None:
                    attempts.append(attempt)
                if call.done:
                    return
                if len(attempts) == 1 and not in_progress:  # as most calls: nothing else is to be sent meanwhile
                    await self._send_one(call, attempts[0])
                    continue
                in_progress.update(asyncio.ensure_future(self._send_one(call, attempt)) for attempt in attempts)
                wait = call.wait_seconds()
                if not in_progress:
                    await asyncio.sleep(wait or 0)
                    continue
                ended, _ = await asyncio.wait(in_progress, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
                    in_progress.remove(task)
        finally:
            if in_progress:
                for task in in_progress:
                    task.cancel()
                await asyncio.gather(*in_progress, return_exceptions=True)

    async def _send_one(self, call: SplitCall, attempt: Attempt) -> None:
        """Sends an attempt, and records its reply or its failure. Raises SelvageError."""
        request_id, metadata = self._settings.headers()
        method = self._method(type(attempt.message))
        try:
            reply = await method(attempt.message, timeout=attempt.seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            call.record_failure(attempt, from_call(error, request_id))
        except grpc.aio.UsageError:
            raise self._closed_error(request_id) from None  # it was closed before the call began
        except asyncio.CancelledError:
            call.record_end()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._closed_error(request_id) from None  # nobody cancelled the task: the channel was closed
        else:
            call.record_reply(attempt, reply)

    def _method(self, kind: type[Any]) -> Callable[..., Any]:
        """The callable for the rpc of a request's class.

        Raises Cancelled after the end, RuntimeError after a fork and on another event loop.
        """
        if self._closed:
            raise self._closed_error()
        loop = asyncio.get_running_loop()
        if self._channel is None:
            check_process()
            self._channel, self._loop = self._settings.channel(), loop
        if self._loop is not loop:
            raise RuntimeError(f"the {self._owner} belongs to the event loop of its first call: make one in each")
        if kind not in self._methods:
            path, parse = RPCS[kind]
            self._methods[kind] = self._channel.unary_unary(path, kind.SerializeToString, parse)
        return self._methods[kind]

    def _closed_error(self, request_id: str = "") -> Cancelled:
        return Cancelled(f"the {self._owner} was closed", request_id=request_id)


_process: list[int] = []
"""The process in which a client has made the first call, and so started the threads of gRPC's asyncio."""


def check_process() -> None:
    """Raises RuntimeError where this process was forked from one in which a client had made calls.

    The threads of gRPC's asyncio are missing here, and cannot be started again: calls would wait for ever.
    """
    if not _process:
        _process.append(os.getpid())
    if _process != [os.getpid()]:
        raise RuntimeError("a client had made calls before this process was forked: fork earlier, or spawn processes")


@contextmanager
def progress_of(operation: Operation[Any]) -> Iterator[Callable[[int], object]]:
    """Yields a function that takes the number of new results, and shows it where the call is to show how far it is.

    Raises ImportError where tqdm, which shows it, is missing.
    """
    if not operation.progress:
        yield lambda _: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(f"progress needs tqdm: pip install tqdm ({error})") from error
    with tqdm(total=operation.size) as bar:
        yield bar.update
