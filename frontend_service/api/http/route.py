"""Routes: what there is to be asked for, and how it is served."""

from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from frontend_service.api.http.body import Body
from frontend_service.api.http.errors import ErrorDialect
from frontend_service.api.http.reply import JSON, HttpReply
from frontend_service.api.renaming import Names, renamed
from frontend_service.application.exchange import Exchange
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer, FinishedAnswer
from shared.caller import Caller
from shared.errors import SelvageError
from shared.terms import RequestTerms

B = TypeVar("B", bound=msgspec.Struct)
Q = TypeVar("Q")
A = TypeVar("A", bound=Answer | FinishedAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request that has been read. `rest`: the end of its path, where the route takes more than its own."""

    caller: Caller
    body: bytes = b""
    rest: str = ""


Endpoint = Callable[[HttpCall], Awaitable[HttpReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path; one that ends with / takes all below it.

    `takes`: the struct in the body, None for no body; `or_takes`: what may be there instead of it; `gives`: what a
    reply looks like, as an example; `content_type`: of a reply, which may be one of `or_content_types` instead;
    `waits`: whether a worker is asked; `open`: whether no key is needed; `counts`: whether it is admitted as a request.
    """

    method: str
    path: str
    serve: Endpoint
    dialect: ErrorDialect
    summary: str
    body_type: Any = None
    other_body_types: tuple[Any, ...] = ()
    example: Any = None
    content_type: str = JSON
    other_content_types: tuple[str, ...] = ()
    needs_worker: bool = True
    is_open: bool = False
    is_admitted: bool = True
    names: Names = field(default=())

    @property
    def name(self) -> str:
        """The name that logs and metrics have for it."""
        return f"{self.method} {self.path}"

    @property
    def has_rest(self) -> bool:
        """The route takes what is below its path."""
        return self.path.endswith("/") and self.path != "/"


@dataclass(frozen=True, slots=True)
class ParsedRequest(Generic[B, Q]):
    """A request with the body that it was read from. `name`: its id."""

    body: B
    name: str
    request: Q


def ExchangeEndpoint(
    frontend: Frontend,
    body: Body[B],
    read: Callable[[B], Q],
    ask: Callable[[Q, RequestTerms], Awaitable[A]],
    write: Callable[[ParsedRequest[B, Q], A], HttpReply],
    weight: int = 1,
    names_of: Callable[[B], Names] = lambda _: (),
) -> Endpoint:
    """Serves by one of the frontend's services: `read` a body, `ask`, `write` a reply.

    `names_of`: what our names are called in a body, where errors are to name a place as this caller wrote it.
    """

    def reads(given: tuple[B, str]) -> ParsedRequest[B, Q]:
        return ParsedRequest(*given, read(given[0]))

    exchange: Exchange[tuple[B, str], ParsedRequest[B, Q], A, HttpReply] = Exchange(
        read=reads, ask=lambda asked, terms: ask(asked.request, terms), write=write, weight=weight
    )

    async def serve(call: HttpCall) -> HttpReply:
        given = await frontend.offload(len(call.body), body.read, call.body)
        asked = (given, call.caller.request_id)
        try:
            reply, timing = await frontend.exchange(exchange, asked, len(call.body), call.caller)
        except SelvageError as error:
            raise _renamed(error, names_of(given)) from error
        told = ", ".join(
            f"{part};dur={1e3 * seconds:.2f}"
            for part, seconds in (
                ("tokenize", timing.tokenize),
                ("queue", timing.queue),
                ("compute", timing.compute),
                ("transfer", timing.transfer),
                ("postprocess", timing.postprocess),
            )
        )
        return HttpReply(
            body=reply.body,
            content_type=reply.content_type,
            headers=(*reply.headers, ("server-timing", told)),
        )

    return serve


def _renamed(error: SelvageError, names: Names) -> SelvageError:
    """A copy of an error with its field and message by these names; others may hold the one that was raised."""
    told = copy(error)
    told.field, told.message = renamed(error.field, names), renamed(error.message, names)
    return told
