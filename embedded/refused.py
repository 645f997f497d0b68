"""The errors of failed calls, in the form of `grpc.Call`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from selvage.connection import Metadata
from shared.errors import SelvageError
from shared.server.status import details_of, message_of


class Refused(grpc.RpcError):
    """The error of a call, as clients read it: code, message, and trailing metadata with the details."""

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
    """The part of a `grpc.Call` that reports how a failed call ended."""

    __slots__ = ()

    @property
    @abstractmethod
    def refused(self) -> Refused:
        """The error of a failed call."""

    def code(self) -> grpc.StatusCode:
        return self.refused.code()

    def details(self) -> str:
        return self.refused.details()

    def trailing_metadata(self) -> Any:
        return self.refused.trailing_metadata()


def cancelled(why: str = "the call was cancelled") -> Refused:
    """Makes the error of a cancelled call, anew each time: an exception keeps the frames it was raised in."""
    return Refused(grpc.StatusCode.CANCELLED, why)


@contextmanager
def refusing() -> Iterator[None]:
    """Converts a SelvageError of the block into Refused."""
    try:
        yield
    except SelvageError as error:
        raise Refused(grpc.StatusCode[error.status], message_of(error), details_of(error)) from None
