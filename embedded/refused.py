"""How a call ended that has no answer, as a `grpc.Call` tells it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from selvage.connection import Metadata
from shared.errors import SelvageError
from shared.server.rpc.status import details_of


class Refused(grpc.RpcError):
    """What clients read of it: code, message, and trailing metadata with all the rest."""

    def __init__(self, code: grpc.StatusCode, message: str, trailers: Metadata = ()) -> None:
        super().__init__(message)
        self._code, self._message, self._trailers = code, message, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def trailing_metadata(self) -> Any:
        return self._trailers


class CallStatus(ABC):
    """The part of a `grpc.Call` that tells how one without an answer has ended."""

    __slots__ = ()

    @property
    @abstractmethod
    def refused(self) -> Refused:
        """Of a call that has ended so."""

    def code(self) -> grpc.StatusCode:
        return self.refused.code()

    def details(self) -> str:
        return self.refused.details()

    def trailing_metadata(self) -> Any:
        return self.refused.trailing_metadata()


def cancelled(why: str = "the call was cancelled") -> Refused:
    """A new one each time: an exception keeps the frames that it was raised in."""
    return Refused(grpc.StatusCode.CANCELLED, why)


@contextmanager
def refusing() -> Iterator[None]:
    """Around what answers a call: errors of ours as gRPC tells them."""
    try:
        yield
    except SelvageError as error:
        raise Refused(grpc.StatusCode[error.status], error.message, details_of(error)) from None
