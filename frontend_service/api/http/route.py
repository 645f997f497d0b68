"""Calls over HTTP whose bodies have arrived, and the routes whose endpoints answer them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from frontend_service.api.http.errors import ErrorDialect
from frontend_service.api.http.fields import Body
from frontend_service.api.http.replies import JSON, HttpReply
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer, Timing
from shared.caller import Caller
from shared.terms import RequestTerms

B = TypeVar("B", bound=msgspec.Struct)
Q = TypeVar("Q")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A call whose body has arrived. `rest`: the end of its path, where the route serves all paths below its own."""

    frontend: Frontend
    caller: Caller
    body: bytes = b""
    rest: str = ""

    @property
    def terms(self) -> RequestTerms:
        """The terms on which it is served."""
        return self.frontend.calls.terms(self.caller)

    async def read(self, body: Body[B]) -> B:
        """Reads the body, in a thread where it is large. Raises InvalidInput, LimitExceeded."""
        return await self.convert(body.read, self.body)

    async def convert(self, convert: Callable[[Q], T], content: Q) -> T:
        """Makes a request of what was read, in a thread where the body is large. Raises what `convert` raises."""
        return await self.frontend.pipeline.offload(len(self.body), convert, content)

    async def reply(self, answer: Answer, size: int, write: Callable[[], HttpReply]) -> HttpReply:
        """Writes the reply in the time of copying `size` bytes; the header `server-timing` has its times."""
        reply, timing = await self.frontend.pipeline.reply(answer, size, write)
        headers = (*reply.headers, ("server-timing", _server_timing(timing)))
        return HttpReply(body=reply.body, content_type=reply.content_type, headers=headers)


Endpoint = Callable[[HttpCall], Awaitable[HttpReply]]
"""The function that answers calls of a route. It raises SelvageError."""


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
