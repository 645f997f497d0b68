"""An error in the words of a shape: status, body and headers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from frontend_service.doors.http.body import NoJson
from frontend_service.doors.http.reply import Reply, written
from frontend_service.doors.renaming import Names, renamed
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
"""Of the nearest class."""


class NotHere(InvalidInput):
    """There is no such path, or not with this method, or not for such a body. `http`: the status that says so."""

    def __init__(self, http: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.http, self.headers = http, headers


def status_of(error: SelvageError) -> int:
    """Of HTTP."""
    if isinstance(error, NotHere):
        return error.http
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


@dataclass(frozen=True, slots=True)
class Shape:
    """How one family of clients is told: `body` of an error with its status, its message and its field."""

    status: Callable[[SelvageError], int]
    body: Callable[[SelvageError, int, str, str], Any]

    def told(self, error: SelvageError, names: Names) -> Reply:
        """`names`: what ours are called here."""
        status = self.status(error)
        field, message = renamed(error.field, names), renamed(error.message, names)
        return Reply(status=status, body=written(self.body(error, status, message, field)), headers=_headers(error))


def _headers(error: SelvageError) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    if isinstance(error, NotHere):
        found.extend(error.headers)
    if isinstance(error, Unauthenticated):
        found.append(("www-authenticate", "Bearer"))
    if error.retry_after is not None:
        found.append(("retry-after", str(max(1, math.ceil(error.retry_after)))))
        found.append(("retry-after-ms", str(math.ceil(1e3 * error.retry_after))))
    return tuple(found)


OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error"}
OPENAI_CODES = {401: "invalid_api_key", 404: "model_not_found"}


def _openai(error: SelvageError, status: int, message: str, field: str) -> Any:
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = OPENAI_CODES[401] if status == 401 else _openai_code(error)
    return {"error": {"message": message, "type": kind, "param": field or None, "code": code}}


def _openai_code(error: SelvageError) -> str:
    return OPENAI_CODES[404] if isinstance(error, UnknownModel) else error.reason.lower()


def _cohere(_: SelvageError, __: int, message: str, ___: str) -> Any:
    return {"message": message}


OF_THE_MODEL = frozenset({"model", "method", "outputs", "outputs[0]"})
TOO_MUCH = (InputTooLong, LimitExceeded, ResultTooLarge)


def _tei_status(error: SelvageError) -> int:
    if isinstance(error, UnsupportedTask) and error.field in OF_THE_MODEL:
        return 424
    if isinstance(error, TOO_MUCH):
        return 413
    if isinstance(error, InvalidInput) and not isinstance(error, NotHere | NoJson):
        return 422
    return status_of(error)


TEI_TYPES = {401: "Unauthorized", 424: "Backend", 429: "Overloaded", 503: "Unhealthy"}


def _tei(_: SelvageError, status: int, message: str, __: str) -> Any:
    return {"error": message, "error_type": TEI_TYPES.get(status, "Validation" if status < 500 else "Backend")}


OPENAI = Shape(status_of, _openai)
COHERE = Shape(status_of, _cohere)
TEI = Shape(_tei_status, _tei)


def shape_of(path: str) -> Shape:
    """Of a path that there is none of."""
    return OPENAI if path.startswith("/v1/") else COHERE if path.startswith("/v2/") else TEI
