"""Links between frontends and workers in one process: as much of a `grpc.aio.Channel` as a frontend's link uses.

Messages are the bytes of the contract, arrive in order, and take a set time by the event loop's clock.
"""

import asyncio
from collections import deque
from typing import Any

import grpc

from gpu_worker.link.server import WorkerServicer
from selvage.worker.v1 import worker_pb2 as pb


def lost(address: str) -> grpc.aio.AioRpcError:
    """The error of calls to a worker that has gone."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, f"the worker at {address} has gone")


class Pipe:
    """Messages in one direction, each `latency` seconds on its way. One reader."""

    def __init__(self, latency: float) -> None:
        self._latency, self._clock = latency, asyncio.get_running_loop().time
        self._messages: deque[tuple[float, bytes | Exception]] = deque()
        self._filled = asyncio.Event()

    def put(self, message: bytes | Exception) -> None:
        """Sends a message, or the error that ends the stream."""
        self._messages.append((self._clock() + self._latency, message))
        self._filled.set()

    async def get(self) -> bytes:
        """Waits for the next message. Raises the error that ended the stream."""
        while not self._messages:
            self._filled.clear()
            await self._filled.wait()
        due, message = self._messages[0]
        if due > self._clock():
            await asyncio.sleep(due - self._clock())
        self._messages.popleft()
        if isinstance(message, Exception):
            raise message
        return message


class VirtualStream:
    """A call to Attach: `read` and `write` are the frontend's; the worker's service has the rest as its context."""

    def __init__(self, network: "VirtualNetwork", address: str, frontend: str) -> None:
        self._up, self._down, self._frontend = Pipe(network.latency), Pipe(network.latency), frontend
        self._address = address
        self.serving = asyncio.create_task(self._serve(network.servicers[address]))

    async def _serve(self, servicer: WorkerServicer) -> None:
        context: Any = _WorkerEnd(self._down, self._frontend)
        try:
            await servicer.Attach(_Requests(self._up), context)
        finally:
            self._down.put(lost(self._address))

    async def write(self, message: bytes) -> None:
        self._up.put(message)

    async def read(self) -> bytes:
        return await self._down.get()


class _Requests:
    """The messages of a frontend; see `AttachRequests`."""

    def __init__(self, up: Pipe) -> None:
        self._up, self.size = up, 0

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> pb.AttachRequest:
        content = await self._up.get()
        self.size = len(content)
        return pb.AttachRequest.FromString(content)


class _WorkerEnd:
    """The context of a service's call."""

    def __init__(self, down: Pipe, frontend: str) -> None:
        self._down, self._frontend = down, frontend

    def peer(self) -> str:
        """The frontend, as an address."""
        return f"virtual:{self._frontend}:0"

    async def write(self, message: bytes) -> None:
        """Sends a message to the frontend."""
        self._down.put(message)


class VirtualNetwork:
    """The workers by address. `latency`: seconds of each message, one way."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.servicers: dict[str, WorkerServicer] = {}
        self._streams: dict[str, set[VirtualStream]] = {}

    def attach(self, address: str, frontend: str) -> VirtualStream:
        """Opens a stream to a worker."""
        stream = VirtualStream(self, address, frontend)
        self._streams.setdefault(address, set()).add(stream)
        return stream

    def detach(self, address: str, stream: VirtualStream) -> None:
        """Ends a stream."""
        stream.serving.cancel()
        self._streams[address].discard(stream)

    def lose(self, address: str) -> None:
        """Takes a worker away at once: its streams break, and nobody reaches it any more."""
        del self.servicers[address]
        for stream in self._streams.pop(address, set()):
            stream.serving.cancel()

    async def close(self) -> None:
        """Ends all streams."""
        tasks = [stream.serving for streams in self._streams.values() for stream in streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class VirtualTransport:
    """Makes one frontend's channels; see `WorkerTransport`."""

    metadata = ()

    def __init__(self, network: VirtualNetwork, frontend: str) -> None:
        self._network, self._frontend = network, frontend

    def channel(self, address: str, host: str) -> "VirtualChannel":
        """Opens a channel to a worker, which may have gone."""
        return VirtualChannel(self._network, address, self._frontend)


class VirtualChannel:
    """A channel to one worker."""

    def __init__(self, network: VirtualNetwork, address: str, frontend: str) -> None:
        self._network, self._address, self._frontend = network, address, frontend
        self._streams: list[VirtualStream] = []

    def unary_unary(self, path: str, *_: object, **__: object) -> Any:
        """The one method with one message each way, which is Describe."""

        async def describe(request: pb.DescribeRequest, **_: object) -> pb.DescribeResponse:
            await asyncio.sleep(2 * self._network.latency)
            context: Any = None
            return await self._servicer().Describe(request, context)

        return describe

    def unary_stream(self, path: str, *_: object, **__: object) -> Any:
        """The one method whose replies are a stream, which is GetTokenizer."""
        context: Any = None
        return lambda request, **_: self._servicer().GetTokenizer(request, context)

    def stream_stream(self, path: str, *_: object, **__: object) -> Any:
        """The one method with streams both ways, which is Attach."""

        def attach(**_: object) -> VirtualStream:
            self._servicer()
            self._streams.append(self._network.attach(self._address, self._frontend))
            return self._streams[-1]

        return attach

    def _servicer(self) -> WorkerServicer:
        if self._address not in self._network.servicers:
            raise lost(self._address)
        return self._network.servicers[self._address]

    async def close(self) -> None:
        """Ends the streams of this channel."""
        for stream in self._streams:
            if self._address in self._network.servicers:
                self._network.detach(self._address, stream)
