"""Errors as HTTP replies, in the form of each dialect: status, body and headers."""

import math
from typing import Any

from frontend_service.api.http.fields import InvalidJson
from frontend_service.api.http.routes import ErrorDialect, HttpReply, to_json
from frontend_service.api.tei_v1.messages import MODEL_FIELDS
from shared.errors import (
    DeadlineExceeded,
    InputTooLarge,
    InputTooLong,
    InvalidInput,
    LimitExceeded,
    Overloaded,
    ResultTooLarge,
    SelvageError,
    Unauthenticated,
    UnknownModel,
    UnsupportedTask,
    WorkerUnavailable,
    printable,
)

STATUSES: dict[type[SelvageError], int] = {
    InvalidInput: 400,
    Unauthenticated: 401,
    UnknownModel: 404,
    InputTooLarge: 413,
    Overloaded: 429,
    WorkerUnavailable: 503,
    DeadlineExceeded: 504,
    SelvageError: 500,
}
"""The HTTP status of each class of error; other classes have that of their nearest base."""


class HttpError(InvalidInput):
    """An error about HTTP itself: the path, the method, the head or the kind of body. `http`: its status."""

    def __init__(self, http: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.http, self.headers = http, headers


def status_of(error: SelvageError) -> int:
    """The HTTP status of an error, in dialects without statuses of their own."""
    if isinstance(error, HttpError):
        return error.http
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


STATUS_MEANINGS = {
    400: "The request makes no sense",
    401: "A key is needed, or it is not known",
    404: "There is no such model",
    413: "The request holds more than is taken",
    415: "The body is no JSON by its content type, or compressed",
    429: "Too much at once: Retry-After tells when to ask again",
    500: "A bug of the service",
    503: "No worker is ready, or the service drains",
    504: "Out of time",
}
"""The meaning of each status, for the OpenAPI document."""


def statuses_of(dialect: ErrorDialect) -> dict[int, str]:
    """All statuses of a dialect, each with its meaning."""
    return dict(sorted({**STATUS_MEANINGS, **dialect.more_statuses}.items()))


def error_reply(dialect: ErrorDialect, error: SelvageError) -> HttpReply:
    """Makes the reply for an error."""
    status = dialect.status(error)
    field, message = printable(error.field), printable(error.message)
    return HttpReply(status=status, body=to_json(dialect.body(error, status, message, field)), headers=_headers(error))


def _headers(error: SelvageError) -> tuple[tuple[str, str], ...]:
    headers: list[tuple[str, str]] = []
    if isinstance(error, HttpError):
        headers.extend(error.headers)
    if isinstance(error, Unauthenticated):
        headers.append(("www-authenticate", "Bearer"))
    if error.retry_after is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after)))))
        headers.append(("retry-after-ms", str(math.ceil(1e3 * error.retry_after))))
    return tuple(headers)


OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found"}


def _openai(error: SelvageError, status: int, message: str, field: str) -> Any:
    is_of_caller = status < 500 or isinstance(error, InvalidInput)  # a method or a coding that is not known has 501
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if is_of_caller else "server_error")
    code = OPENAI_CODES[401] if status == 401 else _openai_code(error)
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code}}


def _openai_code(error: SelvageError) -> str:
    return OPENAI_CODES[404] if isinstance(error, UnknownModel) else error.reason.lower()


def _cohere(_: SelvageError, __: int, message: str, field: str) -> Any:
    return {"message": _with_field(message, field)}


def _with_field(message: str, field: str) -> str:
    """A message that names the field as the caller wrote it, for bodies without a place for the field."""
    return message if field in message else f"{field}: {message}"


TOO_MUCH = (InputTooLong, LimitExceeded, ResultTooLarge)


def _tei_status(error: SelvageError) -> int:
    if isinstance(error, UnsupportedTask) and error.field in MODEL_FIELDS:
        return 424
    if isinstance(error, TOO_MUCH):
        return 413
    if isinstance(error, InvalidInput) and not isinstance(error, HttpError | InvalidJson):
        return 422
    return status_of(error)


TEI_TYPES = {401: "Unauthorized", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


def _tei(_: SelvageError, status: int, message: str, field: str) -> Any:
    return {
        "error": _with_field(message, field),
        "error_type": TEI_TYPES.get(status, "Validation" if status < 500 else "Backend"),
    }


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that must have all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_STRING = {"type": "string"}
OPENAI = ErrorDialect(
    "OpenAI",
    status_of,
    _openai,
    _object(error=_object(message=_STRING, type=_STRING, param={"type": ["string", "null"]}, code=_STRING)),
)
COHERE = ErrorDialect("Cohere", status_of, _cohere, _object(message=_STRING))
TEI = ErrorDialect(
    "TEI",
    _tei_status,
    _tei,
    _object(error=_STRING, error_type={"enum": [*TEI_TYPES.values(), "Validation"]}),
    {422: "The request makes no sense to this model", 424: "The model is of another kind"},
)


def dialect_of(path: str) -> ErrorDialect:
    """The dialect of errors about a path without routes."""
    return OPENAI if path.startswith("/v1/") else COHERE if path.startswith("/v2/") else TEI
