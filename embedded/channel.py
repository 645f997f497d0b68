"""A `grpc.Channel` to the services in this process, for callers that bring their own calls."""

import weakref
from typing import Any

import grpc

from embedded.engine import start
from embedded.options import EngineOptions
from selvage.connection import CHANNEL_OPTIONS


class LocalChannel:
    """A channel to a model in this process, which ends with the channel."""

    def __init__(self, model: str, options: EngineOptions) -> None:
        """Loads the model. Raises as `Engine` does."""
        self._loop, address = start(model, options)
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.unary_unary: Any = self._channel.unary_unary
        self.stream_stream: Any = self._channel.stream_stream
        weakref.finalize(self, self._loop.stop).atexit = False

    def close(self) -> None:
        """Ends calls in progress, and the services."""
        self._channel.close()
        self._loop.close()


local_channel = LocalChannel
