"""Routes of the HTTP API and their endpoints."""

from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from frontend_service.api.field_names import FieldNames, field_as
from frontend_service.api.http.errors import ErrorDialect
from frontend_service.api.http.fields import Body
from frontend_service.api.http.replies import JSON, HttpReply
from frontend_service.application.frontend import Exchange, Frontend
from frontend_service.domain.answer import Answer, FinishedAnswer, Timing
from shared.caller import Caller
from shared.errors import SelvageError
from shared.terms import RequestTerms

B = TypeVar("B", bound=msgspec.Struct)
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | FinishedAnswer)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A call whose body has arrived. `rest`: the end of its path, where the route serves all paths below its own."""

    caller: Caller
    body: bytes = b""
    rest: str = ""


Endpoint = Callable[[HttpCall], Awaitable[HttpReply]]
"""The function that answers calls of a route."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path with the endpoint that serves them. A path that ends with / stands for all paths below it.

    `body_type`: the struct in the body, None for no body; `other_body_types`: structs that may be there instead;
    `example`: a reply, for the documentation; `content_type`: that of replies; `needs_worker`: whether a worker is
    asked; `is_open`: whether no API key is needed; `is_admitted`: whether calls count as requests for admission.
    """

    method: str
    path: str
    endpoint: Endpoint
    dialect: ErrorDialect
    summary: str
    body_type: Any = None
    other_body_types: tuple[Any, ...] = ()
    example: Any = None
    content_type: str = JSON
    needs_worker: bool = True
    is_open: bool = False
    is_admitted: bool = True

    @property
    def name(self) -> str:
        """The route's name in logs and metrics."""
        return f"{self.method} {self.path}"

    @property
    def has_rest(self) -> bool:
        """The route serves all paths below its own."""
        return self.path.endswith("/") and self.path != "/"


@dataclass(frozen=True, slots=True)
class ParsedRequest(Generic[B, Q]):
    """A request with the body that it was read from, and the id of its call."""

    body: B
    request_id: str
    request: Q


class ExchangeEndpoint(Generic[B, Q, A]):
    """An endpoint that answers calls by one of the frontend's services."""

    def __init__(
        self,
        frontend: Frontend,
        body: Body[B],
        read: Callable[[B], Q],
        call_service: Callable[[Q, RequestTerms], Awaitable[A]],
        write: Callable[[ParsedRequest[B, Q], A], HttpReply],
        weight: int = 1,
        names_of: Callable[[B], FieldNames] = lambda _: {},
    ) -> None:
        """`read` makes a request of a body, `call_service` answers it, `write` makes the reply. `weight`: see Exchange.

        `names_of`: our names as a body has them, so that errors name a place as this caller wrote it.
        """
        self._frontend, self._body, self._read, self._names_of = frontend, body, read, names_of
        self._call_service = call_service
        self._exchange: Exchange[tuple[B, str], ParsedRequest[B, Q], A, HttpReply] = Exchange(
            read=self._parse, call_service=self._call_parsed, write=write, weight=weight
        )

    async def __call__(self, call: HttpCall) -> HttpReply:
        """Answers a call, with its times in the header `server-timing`. Raises SelvageError."""
        body = await self._frontend.offload(len(call.body), self._body.read, call.body)
        message = (body, call.caller.request_id)
        reply, timing = await with_field_names(
            self._frontend.exchange(self._exchange, message, len(call.body), call.caller), lambda: self._names_of(body)
        )
        return HttpReply(
            body=reply.body,
            content_type=reply.content_type,
            headers=(*reply.headers, ("server-timing", _server_timing(timing))),
        )

    def _parse(self, message: tuple[B, str]) -> ParsedRequest[B, Q]:
        body, request_id = message
        return ParsedRequest(body, request_id, self._read(body))

    def _call_parsed(self, parsed: ParsedRequest[B, Q], terms: RequestTerms) -> Awaitable[A]:
        return self._call_service(parsed.request, terms)


def _server_timing(timing: Timing) -> str:
    """Times in milliseconds, as the header `server-timing` has them."""
    return ", ".join(
        f"{part};dur={1e3 * seconds:.2f}"
        for part, seconds in (
            ("tokenize", timing.tokenize),
            ("queue", timing.queue),
            ("compute", timing.compute),
            ("transfer", timing.transfer),
            ("postprocess", timing.postprocess),
        )
    )


async def with_field_names(answer: Awaitable[T], names_of: Callable[[], FieldNames]) -> T:
    """Returns what a service answers. Its errors are raised as copies with the field as an API names it: other requests
    may share the original."""
    try:
        return await answer
    except SelvageError as error:
        renamed = copy(error)
        renamed.field = field_as(error.field, names_of())
        raise renamed from error
