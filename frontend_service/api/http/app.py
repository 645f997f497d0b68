"""One call: route, caller, body, answer, reply. ASGI; what holds for every call is `Calls`'.

Specification: asgi.readthedocs.io, HTTP 2.3.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from frontend_service.api.http import head
from frontend_service.api.http.arrival import CallerGone, Headers, Receive, check_body_headers, read_body
from frontend_service.api.http.cors import Cors
from frontend_service.api.http.errors import ErrorDialect, HttpError, dialect_of
from frontend_service.api.http.head import TIMEOUT, Hosts
from frontend_service.api.http.reply import HttpReply
from frontend_service.api.http.route import HttpCall, Route
from frontend_service.application.frontend import Frontend
from shared.caller import REQUEST_ID, Caller, caller_of, chosen_id, host_of
from shared.errors import InvalidInput, SelvageError

NO_CONTENT = 204
"""A status whose reply has no body, and tells of none."""
LARGE_REPLY = 64 * 1024
"""Bytes of a reply that counts until it has left; smaller ones leave at once."""
LONGEST = 3600
"""Seconds that a caller may say it waits, in the header TIMEOUT."""
PROBES = frozenset({"/health", "/ping"})
"""Paths that are answered for any host: balancers ask by address, and a probe tells only that somebody is there."""
ABORT = "selvage.abort"
"""An extension of the scope: ends the connection at once."""

ALL_HOSTS, NO_CORS = Hosts(), Cors()

Send = Callable[[dict[str, Any]], Awaitable[None]]
ObserveCall = Callable[[str, int, float], None]
"""The function that is told of each call: method and route, status, seconds."""
T = TypeVar("T")


class App:
    """All routes of the door, for an ASGI server."""

    def __init__(
        self,
        frontend: Frontend,
        routes: Iterable[Route],
        tell: ObserveCall | None = None,
        *,
        hosts: Hosts = ALL_HOSTS,
        cors: Cors = NO_CORS,
    ) -> None:
        """`tell`: told of each call; `hosts`: that requests may be for; `cors`: pages that browsers let ask."""
        self._frontend, self._tell, self._hosts, self._cors = frontend, tell, hosts, cors
        self.routes = tuple(routes)
        self.needs_no_worker = frozenset(route.name for route in self.routes if not route.needs_worker)
        self._paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            self._paths.setdefault(route.path, {})[route.method] = route
        self._above = [path for path in self._paths if path.endswith("/") and path != "/"]

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        start = time.monotonic()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        path = plain_path(scope["path"])
        name, route, shape = chosen_id(headers), None, self._shape(path)
        is_read = _nothing
        try:
            reply = self._before_routes(scope, path, headers)
            if reply is None:
                route, rest = self._found(scope["method"], path)
                reply = await self._answered(route, rest, scope, headers, name, receive)
                is_read = self._held(reply)
        except SelvageError as error:
            reply = shape.told(error, () if route is None else route.names)
        except CallerGone:
            return
        reply = replace(reply, headers=(*reply.headers, *self._cors.added(headers)))
        if self._tell is not None:
            self._tell(route.name if route else "none", reply.status, time.monotonic() - start)
        try:
            await self._sent(reply, name, scope, send)
        finally:
            is_read()

    def _shape(self, path: str) -> ErrorDialect:
        """The shape in whose words errors of a path are told, whatever the method."""
        methods = self._paths.get(path)
        return next(iter(methods.values())).dialect if methods else dialect_of(path)

    def _before_routes(self, scope: Mapping[str, Any], path: str, headers: Headers) -> HttpReply | None:
        """What any path says of such a head; None: nothing. Raises NotHere."""
        head.check(scope["method"], scope["http_version"], headers)
        if path not in PROBES:
            self._hosts.check(headers)
        return self._cors.preflight(scope["method"], headers)

    def _found(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the rest of the path. Raises NotHere."""
        methods, rest = self._paths.get(path), ""
        if methods is None:  # a name below may have slashes of its own
            above = next((prefix for prefix in self._above if path.startswith(prefix) and path != prefix), "")
            methods, rest = self._paths.get(above), path.removeprefix(above)
        if methods is None:
            raise HttpError(404, "there is nothing at this path; /docs tells what there is")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            known = ", ".join(methods)
            raise HttpError(405, f"this path takes {known}", (("allow", known),))
        return route, rest

    async def _answered(
        self, route: Route, rest: str, scope: Mapping[str, Any], headers: Headers, name: str, receive: Receive
    ) -> HttpReply:
        calls = self._frontend.calls
        if route.is_open:
            return await route.serve(HttpCall(caller=Caller(method=route.name, request_id=name)))
        client = scope.get("client")
        caller = caller_of(
            route.name, name, headers, host=host_of(client[0]) if client else "", remaining=_remaining(headers)
        )
        caller = calls.identified(caller)
        if not route.is_admitted:
            return await self._work(route, rest, caller, headers, receive)
        return await calls.answer(caller, lambda: self._work(route, rest, caller, headers, receive))

    async def _work(self, route: Route, rest: str, caller: Caller, headers: Headers, receive: Receive) -> HttpReply:
        if route.body_type is None:
            return await route.serve(HttpCall(caller=caller, rest=rest))
        check_body_headers(headers)
        admission = self._frontend.calls.admission
        with admission.holding() as holding:
            body = await read_body(receive, admission, holding)
            return await _while_there(receive, route.serve(HttpCall(caller=caller, body=body, rest=rest)))

    def _held(self, reply: HttpReply) -> Callable[[], None]:
        """A large reply counts until this is called. Raises Overloaded."""
        size = len(reply.body)
        return self._frontend.calls.admission.hold_reply(size) if size > LARGE_REPLY else _nothing

    async def _sent(self, reply: HttpReply, name: str, scope: Mapping[str, Any], send: Send) -> None:
        """Returns when most of it has left. A caller that takes too long is let go."""
        try:
            async with asyncio.timeout(self._frontend.calls.admission.bounds.read_seconds):
                await _written(reply, name, send)
        except TimeoutError:
            abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, _nothing)
            abort()


def plain_path(path: str) -> str:
    """A path without what clients put into it by accident: doubled slashes, and one at the end."""
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"


async def _written(reply: HttpReply, name: str, send: Send) -> None:
    described = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % len(reply.body))]
    headers = [
        *(described if reply.status != NO_CONTENT else ()),
        (b"x-content-type-options", b"nosniff"),
        (REQUEST_ID.encode(), name.encode("latin-1", "replace")),
        *((key.encode(), value.encode("latin-1", "replace")) for key, value in reply.headers),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    large = len(reply.body) > LARGE_REPLY
    await send({"type": "http.response.body", "body": reply.body, "more_body": large})
    if large:  # waits until most of it has left
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _nothing() -> None:
    """A small reply counts nowhere."""


def _remaining(headers: Headers) -> float | None:
    """Seconds that the caller waits. Raises InvalidInput."""
    text = next((value for name, value in headers if name == TIMEOUT), None)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:
        raise InvalidInput(f"{TIMEOUT} must be seconds, more than 0 and at most {LONGEST}", field=TIMEOUT)
    return seconds


async def _while_there(receive: Receive, work: Awaitable[T]) -> T:
    """What `work` returns, cancelled where the caller goes first: then this raises Gone."""
    task = asyncio.current_task()
    assert task is not None
    leaving = asyncio.ensure_future(receive())  # the body has been read: nothing but the end comes

    def left(_: object) -> None:
        task.cancel()

    leaving.add_done_callback(left)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            task.uncancel()
            raise CallerGone from None
        raise
    finally:
        leaving.remove_done_callback(left)
        leaving.cancel()
