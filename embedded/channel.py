"""Calls as a `grpc.Channel` makes them, to handlers in this process: as much of it as clients use.

Requests, replies, metadata, deadlines and errors are those of the services; but no message is too large.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from embedded.options import EngineOptions, settings_of
from embedded.pair import Over, Pair
from embedded.refused import CallStatus, Refused, cancelled, refusing
from embedded.stream import LocalStream
from gpu_worker.schedule.driver import DeviceLost
from selvage.connection import Metadata
from shared.caller import Caller, caller_of, chosen_id
from shared.errors import ModelRefused
from shared.server.interceptor import CALLER
from shared.tasks import offload

Parse = Callable[[bytes], Message]


def local_channel(model: str, options: EngineOptions) -> "LocalChannel":
    """Loads a model into this process and returns a channel to it; see `Engine`.

    Raises ValueError in one line if the model is refused, RuntimeError if the device fails, and what `settings_of`
    raises.
    """
    settings = settings_of(model, options)
    try:
        return LocalChannel(Pair(settings))
    except ModelRefused as error:
        raise ValueError(f"model = {model!r}: {error}") from error
    except DeviceLost as lost:
        raise RuntimeError(f"the device is lost: {lost}") from lost


class LocalChannel:
    """A channel to a pair in this process, which ends with the channel."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def unary_unary(self, path: str, request_serializer: object, response_deserializer: Parse) -> "LocalMethod":
        """See `grpc.Channel`; requests are not serialised."""
        return LocalMethod(self._pair, path, response_deserializer)

    def stream_stream(
        self, path: str, request_serializer: object, response_deserializer: Parse
    ) -> Callable[..., LocalStream]:
        """See `grpc.Channel`."""

        def call(requests: Iterator[Message], metadata: Metadata) -> LocalStream:
            return LocalStream(self._pair, _caller(path, metadata, None), requests, response_deserializer)

        return call

    def stop(self) -> None:
        """Stops the pair without waiting."""
        self._pair.stop()

    def close(self) -> None:
        self._pair.close()


@dataclass(frozen=True, slots=True)
class LocalMethod:
    """See `grpc.UnaryUnaryMultiCallable`."""

    _pair: Pair
    _path: str
    _parse: Parse

    def __call__(self, request: Message, timeout: float | None = None, metadata: Metadata = ()) -> Message:
        return self.future(request, timeout, metadata).result()

    def future(self, request: Message, timeout: float | None = None, metadata: Metadata = ()) -> "LocalCall":
        try:
            return LocalCall(self._pair.run(self._answer(request, timeout, metadata)))
        except Over as over:
            ended: Future[Message] = Future()
            ended.set_exception(cancelled(str(over)))
            return LocalCall(ended)

    async def _answer(self, request: Message, timeout: float | None, metadata: Metadata) -> Message:
        calls, handler = self._pair.calls, self._pair.handlers[self._path].unary_unary
        with refusing():
            caller = _caller(self._path, metadata, timeout)
            CALLER.set(caller)

            async def work() -> Message:
                with calls.admission.hold(request.ByteSize()):
                    reply = await handler(request, None)
                    return await offload(self._pair.messages, calls.admission.reserved, self._read, reply)

            return await calls.answer(caller, work)

    def _read(self, reply: Any) -> Message:
        """The reply as a message; some handlers return pieces that must be joined and parsed."""
        return reply if isinstance(reply, Message) else self._parse(reply.SerializeToString())


@dataclass(frozen=True, slots=True, eq=False)
class LocalCall(CallStatus):
    """A call in this process with one reply; see `grpc.Call` and `grpc.Future`."""

    _future: "Future[Message]"

    def result(self) -> Message:
        """Waits for the reply. Raises Refused."""
        try:
            return self._future.result()
        except CancelledError:
            raise cancelled() from None

    def add_done_callback(self, tell: "Callable[[LocalCall], None]") -> None:
        self._future.add_done_callback(lambda _: tell(self))

    def cancel(self) -> None:
        self._future.cancel()

    @property
    def refused(self) -> Refused:
        """The error of a call that failed."""
        error = cancelled() if self._future.cancelled() else self._future.exception()
        assert isinstance(error, Refused), "a bug"
        return error


def _caller(path: str, metadata: Metadata, seconds: float | None) -> Caller:
    """The caller of a call, from its metadata. Raises InvalidInput for an unknown priority."""
    texts = [(name, value) for name, value in metadata if isinstance(value, str)]
    return caller_of(path, chosen_id(metadata), texts, host="", remaining=seconds)
