"""Conversion between SelvageError and gRPC statuses, both directions side by side."""

from __future__ import annotations  # grpcio's own classes take no type arguments at run time

from contextlib import suppress
from functools import lru_cache
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from shared.caller import REQUEST_ID
from shared.errors import (
    FIELD_LETTERS,
    MESSAGE_LETTERS,
    DeadlineExceeded,
    Internal,
    LimitExceeded,
    SelvageError,
    WorkerUnavailable,
    error_classes,
    printable,
    shorten,
)
from shared.value_codec import duration_from_pb, duration_to_pb


def message_of(error: SelvageError) -> str:
    """The message of an error as it leaves."""
    return printable(error.message)[:MESSAGE_LETTERS]


def to_status(error: SelvageError) -> status_pb2.Status:
    """The `google.rpc.Status` of an error: ErrorInfo always, BadRequest and RetryInfo where they apply."""
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain="selvage")]
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=printable(error.field)[:FIELD_LETTERS], description=message_of(error)
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=duration_to_pb(error.retry_after)))
    status = status_pb2.Status(code=grpc.StatusCode[error.status].value[0], message=message_of(error))
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: SelvageError, request_id: str) -> NoReturn:
    """Ends the call with the error's status, details and trailers; always raises.

    The traceback of the error is cleared: grpc keeps the exception in a reference cycle until the next full garbage
    collection, and with it every frame of the traceback, such as one with a request of 60 MiB.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
    trailers = ((REQUEST_ID, request_id), *details_of(error))
    await context.abort(grpc.StatusCode[error.status], message_of(error), trailers)


def details_of(error: SelvageError) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of an error: reason, field and retry delay."""
    return _details(error.status, error.reason, error.message, error.field, error.retry_after)


@lru_cache(256)
def _details(
    code: str, reason: str, message: str, field: str, retry_after: float | None
) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of an error, cached: under overload the same few refusals are sent a thousand times a second."""
    error = error_classes()[reason](message, field=field, retry_after=retry_after)
    error.status = code
    metadata = tuple(rpc_status.to_status(to_status(error)).trailing_metadata)
    if retry_after is None:
        return metadata
    return (*metadata, ("grpc-retry-pushback-ms", str(round(retry_after * 1000))))


def to_domain_error(error: grpc.aio.AioRpcError) -> SelvageError:
    """Converts a failed call to another service of ours into its error, or one for a failure of the transport.

    A broken connection shows as UNAVAILABLE, CANCELLED, INTERNAL or UNKNOWN, depending on what was in progress.
    """
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            with suppress(DecodeError):  # not details of ours
                return _from_status(status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode()))
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded("the worker did not answer in time")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitExceeded("a message to or from the worker has too many bytes")
    return WorkerUnavailable(f"the connection to the worker failed ({error.code().name})", retry_after=1.0)


def _from_status(status: status_pb2.Status) -> SelvageError:
    info, violations, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(violations)
        if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry = duration_from_pb(delay)
    field = violations.field_violations[0].field if violations.field_violations else ""
    return error_classes().get(info.reason, Internal)(shorten(status.message), field=field, retry_after=retry)
