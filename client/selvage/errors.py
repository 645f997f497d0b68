"""The errors that calls of a client raise, by the service's reason for them.

SelvageError
 |- InvalidInput            the request makes no sense; a ValueError as well
 |   |- InputTooLong        a text over the model's limit, and `truncate` unset
 |   |- LimitExceeded       more texts, bytes or tokens than a limit of the service
 |   |- UnsupportedDimensions
 |   |- UnsupportedTask     an output, method or prompt that the model does not have
 |   |- DimensionMismatch   query and document vectors of different widths
 |   '- ResultTooLarge      the reply for one text alone would not fit into a message
 |- UnknownModel
 |- Overloaded              try again after `retry_after` seconds
 |- InputTooLarge           the device runs out of memory on this input alone, so no retry helps
 |- Unavailable             no service or no worker is ready, or the connection broke; a ConnectionError as well
 |- DeadlineExceeded        a TimeoutError as well
 |- Denied                  the key is missing, unknown, or may not do this
 |- Cancelled               the call was ended before its reply, for instance by closing the client
 '- Internal                a bug of the service

This is the only file that reads the status and the details of a failed call. It knows no client.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from selvage.connection import explained

DETAILS, PUSHBACK = "grpc-status-details-bin", "grpc-retry-pushback-ms"


class SelvageError(Exception):
    """The base class of all errors.

    - `code`: the gRPC status.
    - `reason`: the reason in the service's table of errors, such as INPUT_TOO_LONG.
    - `field`: the field of the request at fault, such as texts[3], or empty. Places count in the whole input, also
      where it was sent in several requests.
    - `retry_after`: seconds until another try is worth while; None where the service does not advise one.
    - `request_id`: the id of the call in the service's logs; empty where nothing was sent.
    """

    status: ClassVar[str] = "UNKNOWN"
    default_reason: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        field: str = "",
        retry_after: float | None = None,
        request_id: str = "",
        code: grpc.StatusCode | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.field = field
        self.retry_after = retry_after
        self.request_id = request_id
        self.code = code or grpc.StatusCode[self.status]

    def __str__(self) -> str:
        return self.message

    def shifted(self, places: Mapping[str, int]) -> "SelvageError":
        """The same error for the whole input, in which entry i of a request's list is entry i + places[list]."""
        name, bracket, rest = self.field.partition("[")
        number, closing, tail = rest.partition("]")
        if not (bracket and closing and number.isdigit() and places.get(name)):
            return self
        field = f"{name}[{int(number) + places[name]}]{tail}"
        return type(self)(
            self.message.replace(self.field, field),
            reason=self.reason,
            field=field,
            retry_after=self.retry_after,
            request_id=self.request_id,
            code=self.code,
        )


class InvalidInput(SelvageError, ValueError):
    status, default_reason = "INVALID_ARGUMENT", "INVALID_INPUT"


class InputTooLong(InvalidInput):
    default_reason = "INPUT_TOO_LONG"


class LimitExceeded(InvalidInput):
    default_reason = "LIMIT_EXCEEDED"


class UnsupportedDimensions(InvalidInput):
    default_reason = "UNSUPPORTED_DIMENSIONS"


class UnsupportedTask(InvalidInput):
    default_reason = "UNSUPPORTED_TASK"


class DimensionMismatch(InvalidInput):
    default_reason = "DIMENSION_MISMATCH"


class ResultTooLarge(InvalidInput):
    default_reason = "RESULT_TOO_LARGE"


class UnknownModel(SelvageError):
    status, default_reason = "NOT_FOUND", "UNKNOWN_MODEL"


class Overloaded(SelvageError):
    status, default_reason = "RESOURCE_EXHAUSTED", "OVERLOADED"


class InputTooLarge(SelvageError):
    status, default_reason = "RESOURCE_EXHAUSTED", "INPUT_TOO_LARGE"


class Unavailable(SelvageError, ConnectionError):
    status, default_reason = "UNAVAILABLE", "WORKER_UNAVAILABLE"


class DeadlineExceeded(SelvageError, TimeoutError):
    status, default_reason = "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"


class Denied(SelvageError, PermissionError):
    status, default_reason = "UNAUTHENTICATED", "UNAUTHENTICATED"


class Cancelled(SelvageError):
    status, default_reason = "CANCELLED", "CANCELLED"


class Internal(SelvageError):
    status, default_reason = "INTERNAL", "INTERNAL"


BY_REASON: dict[str, type[SelvageError]] = {
    kind.default_reason: kind
    for kind in (
        *(InvalidInput, InputTooLong, LimitExceeded, UnsupportedDimensions, UnsupportedTask, DimensionMismatch),
        *(ResultTooLarge, UnknownModel, Overloaded, InputTooLarge, Unavailable, DeadlineExceeded, Denied, Internal),
    )
}
BY_STATUS: dict[str, type[SelvageError]] = {
    "INVALID_ARGUMENT": InvalidInput,
    "FAILED_PRECONDITION": InvalidInput,
    "OUT_OF_RANGE": InvalidInput,
    "NOT_FOUND": UnknownModel,
    "UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "UNAUTHENTICATED": Denied,
    "PERMISSION_DENIED": Denied,
    **dict.fromkeys(("CANCELLED", "INTERNAL", "UNKNOWN"), Unavailable),  # so does a connection that breaks show
}
"""Errors of calls that carry no reason, because the connection failed or a proxy answered instead of the service."""


def from_call(call: Any, request_id: str) -> SelvageError:
    """The error of a failed call, from its `grpc.aio.AioRpcError`."""
    reason, field, retry_after = "", "", None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS:
            reason, field, retry_after = _details(status_pb2.Status.FromString(value).details, retry_after)
        elif key == PUSHBACK and retry_after is None:
            retry_after = _pushback(value)
    code, message = call.code(), call.details() or call.code().name
    message = message if reason else explained(code, message)
    kind = BY_REASON.get(reason) or _by_status(code, message)
    return kind(message, reason=reason, field=field, retry_after=retry_after, request_id=request_id, code=code)


def _details(details: Iterable[Any], retry_after: float | None) -> tuple[str, str, float | None]:
    """Reason, field and retry_after of an error's details; `retry_after` is kept where the details have none."""
    info, violations = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in details:
        detail.Unpack(info)
        detail.Unpack(violations)
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMicroseconds() / 1e6
    field = violations.field_violations[0].field if violations.field_violations else ""
    return info.reason, field, retry_after


def _pushback(value: str | bytes) -> float | None:
    """Seconds until another try; None for a negative number, or no number, which ask for no further try."""
    try:
        milliseconds = int(value)
    except ValueError:
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


def _by_status(code: grpc.StatusCode, message: str) -> type[SelvageError]:
    """The class for a status. RESOURCE_EXHAUSTED may also be gRPC's own refusal of a message that is too large."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded if "larger than max" in message else Overloaded
    return BY_STATUS.get(code.name, SelvageError)
