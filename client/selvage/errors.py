"""What a call of the client raises, drawn here: the errors of the service by their reason.

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
 |- InputTooLarge           the device ran out of memory on this input alone; no retry helps
 |- Unavailable             no service or no worker is ready; a ConnectionError as well
 |- DeadlineExceeded        a TimeoutError as well
 |- Denied                  the key is missing, unknown, or may not do this
 |- Cancelled               somebody else ended the call
 '- Internal                a bug of the service

Knows no client. The statuses and details of a failed call are read here and nowhere else.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

DETAILS, PUSHBACK = "grpc-status-details-bin", "grpc-retry-pushback-ms"


class SelvageError(Exception):
    """Base of all.

    `code`: the gRPC status. `reason`: as the error table of the service has it, such as INPUT_TOO_LONG. `field`: the
    field of the request at fault, such as texts[3], or empty; places count in the whole input, however it was split.
    `retry_after`: seconds, None where the service does not advise another try. `request_id`: under which the service's
    logs have the call; empty where nothing was sent.
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
        """The same error where entry i of a list was entry i + places[list] of the whole input."""
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
    each.default_reason: each
    for each in (
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
    "CANCELLED": Cancelled,
    "INTERNAL": Internal,
}
"""Where nobody told a reason: the transport failed, or something between us and the service answered."""


def from_call(call: Any, request_id: str) -> SelvageError:
    """The error of a failed call: a `grpc.RpcError` that is its `grpc.Call` too, or a `grpc.aio.AioRpcError`."""
    reason, field, retry_after = "", "", None
    for key, value in call.trailing_metadata() or ():
        if key == DETAILS:
            reason, field, retry_after = _details(status_pb2.Status.FromString(value).details, retry_after)
        elif key == PUSHBACK and retry_after is None:
            retry_after = _pushback(value)
    code, message = call.code(), call.details() or call.code().name
    known = {"reason": reason, "field": field, "retry_after": retry_after, "request_id": request_id, "code": code}
    return (BY_REASON.get(reason) or _by_status(code, message))(message, **known)


def from_ended_stream(call: Any, request_id: str) -> SelvageError:
    """The error with which a whole stream has ended, where more may be sent through another one.

    A connection that breaks under a stream shows in many ways, and grpc.aio tells who is writing then of INTERNAL. What
    the service itself says is told with its reason.
    """
    error = from_call(call, request_id)
    told = any(key == DETAILS for key, _ in call.trailing_metadata() or ())
    if told or error.code.name not in ("INTERNAL", "UNKNOWN", "CANCELLED"):
        return error
    return Unavailable(f"the stream broke: {error}", request_id=request_id, code=error.code)


def from_stream(message: Any, request_id: str) -> SelvageError:
    """The error of one batch of a bulk stream, a `selvage.v1.StreamError`."""
    code = next((each for each in grpc.StatusCode if each.value[0] == message.code), grpc.StatusCode.UNKNOWN)
    wait = message.retry_after.ToMicroseconds() / 1e6 if message.HasField("retry_after") else None
    kind = BY_REASON.get(message.reason) or _by_status(code, message.message)
    return kind(
        message.message, reason=message.reason, field=message.field, retry_after=wait, request_id=request_id, code=code
    )


def _details(details: Iterable[Any], retry_after: float | None) -> tuple[str, str, float | None]:
    info, violations, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in details:
        detail.Unpack(info)
        detail.Unpack(violations)
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMicroseconds() / 1e6
    field = violations.field_violations[0].field if violations.field_violations else ""
    return info.reason, field, retry_after


def _pushback(value: str | bytes) -> float | None:
    """Seconds; a negative number, or none, asks not to try again."""
    try:
        milliseconds = int(value)
    except ValueError:
        return None
    return milliseconds / 1000 if milliseconds >= 0 else None


def _by_status(code: grpc.StatusCode, message: str) -> type[SelvageError]:
    """RESOURCE_EXHAUSTED is what gRPC says of a message that is too large as well."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded if "larger than max" in message else Overloaded
    return BY_STATUS.get(code.name, SelvageError)
