"""One call: route, caller, body, answer, reply. ASGI; `Calls` holds what is common to all calls.

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
"""The status of replies without a body, which have no headers about one either."""
LARGE_REPLY = 64 * 1024
"""Size in bytes from which a reply is counted until it has left; smaller replies leave at once."""
SENT_AT_ONCE = 256 * 1024
"""Most bytes of a reply that are written at once. Python 3.11 copies what a full socket does not take of them."""
MAX_TIMEOUT = 3600
"""Longest time that a caller may choose in the header TIMEOUT, in seconds."""
PROBES = frozenset({"/health", "/ping"})
"""Paths that are answered for any host: load balancers ask by address, and a probe only tells that the port serves."""
ABORT = "selvage.abort"
"""An extension of the ASGI scope: a function that ends the connection at once."""

ALL_HOSTS, NO_CORS = Hosts(), Cors()

Send = Callable[[dict[str, Any]], Awaitable[None]]
ObserveCall = Callable[[str, int, float], None]
"""A function that is called after each call with its method and route, its status and its seconds."""
T = TypeVar("T")


class App:
    """All routes of the HTTP API as an ASGI application."""

    def __init__(
        self,
        frontend: Frontend,
        routes: Iterable[Route],
        observe_call: ObserveCall | None = None,
        *,
        hosts: Hosts = ALL_HOSTS,
        cors: Cors = NO_CORS,
    ) -> None:
        """`hosts`: hosts that requests may be for; `cors`: web pages of other sites that may call the API."""
        self._frontend, self._observe_call, self._hosts, self._cors = frontend, observe_call, hosts, cors
        self.routes = tuple(routes)
        self.local_routes = frozenset(route.name for route in self.routes if not route.needs_worker)
        self._paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            self._paths.setdefault(route.path, {})[route.method] = route
        self._prefixes = [path for path in self._paths if path.endswith("/") and path != "/"]

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        start = time.monotonic()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        path = plain_path(scope["path"])
        request_id, route, dialect = chosen_id(headers), None, self._dialect(path)
        release_reply = _do_nothing
        try:
            reply = self._answer_by_head(scope, path, headers)
            if reply is None:
                route, rest = self._find_route(scope["method"], path)
                reply = await self._answer(route, rest, scope, headers, request_id, receive)
                release_reply = self._hold_reply(reply)
        except SelvageError as error:
            reply = dialect.error_reply(error, () if route is None else route.names)
        except CallerGone:
            return
        reply = replace(reply, headers=(*reply.headers, *self._cors.added(headers)))
        if self._observe_call is not None:
            self._observe_call(route.name if route else "none", reply.status, time.monotonic() - start)
        try:
            await self._send(reply, request_id, scope, send)
        finally:
            release_reply()

    def _dialect(self, path: str) -> ErrorDialect:
        """The dialect in which errors of a path are written, whatever the method."""
        methods, _ = self._methods(path)
        return next(iter(methods.values())).dialect if methods else dialect_of(path)

    def _answer_by_head(self, scope: Mapping[str, Any], path: str, headers: Headers) -> HttpReply | None:
        """Checks the head of a request; returns a reply where the head alone decides it. Raises HttpError."""
        head.check(scope["method"], scope["http_version"], headers)
        if path not in PROBES:
            self._hosts.check(headers)
        return self._cors.preflight(scope["method"], headers)

    def _methods(self, path: str) -> tuple[dict[str, Route] | None, str]:
        """Returns the routes of a path by their methods, None where it has none, and the rest of the path."""
        methods = self._paths.get(path)
        if methods is not None:
            return methods, ""
        # The rest may have slashes of its own.
        prefix = next((prefix for prefix in self._prefixes if path.startswith(prefix) and path != prefix), "")
        return self._paths.get(prefix), path.removeprefix(prefix)

    def _find_route(self, method: str, path: str) -> tuple[Route, str]:
        """Returns the route of a path, and the rest of the path below it. Raises HttpError."""
        methods, rest = self._methods(path)
        if methods is None:
            raise HttpError(404, "there is nothing at this path; /docs tells what there is")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(methods)
            raise HttpError(405, f"this path takes {allowed}", (("allow", allowed),))
        return route, rest

    async def _answer(
        self, route: Route, rest: str, scope: Mapping[str, Any], headers: Headers, request_id: str, receive: Receive
    ) -> HttpReply:
        """Identifies the caller and answers the call."""
        calls = self._frontend.calls
        if route.is_open:
            return await route.endpoint(HttpCall(caller=Caller(method=route.name, request_id=request_id)))
        client = scope.get("client")
        caller = caller_of(
            route.name, request_id, headers, host=host_of(client[0]) if client else "", remaining=_timeout_of(headers)
        )
        caller = calls.identified(caller)
        if not route.is_admitted:
            return await self._run_endpoint(route, rest, caller, headers, receive)
        return await calls.answer(caller, lambda: self._run_endpoint(route, rest, caller, headers, receive))

    async def _run_endpoint(
        self, route: Route, rest: str, caller: Caller, headers: Headers, receive: Receive
    ) -> HttpReply:
        """Reads the body where the route takes one, and runs the endpoint."""
        if route.body_type is None:
            return await route.endpoint(HttpCall(caller=caller, rest=rest))
        check_body_headers(headers)
        admission = self._frontend.calls.admission
        with admission.holding() as holding:
            body = await read_body(receive, admission, holding)
            return await _while_connected(receive, route.endpoint(HttpCall(caller=caller, body=body, rest=rest)))

    def _hold_reply(self, reply: HttpReply) -> Callable[[], None]:
        """Counts a large reply until the returned function is called. Raises Overloaded."""
        size = len(reply.body)
        return self._frontend.calls.admission.hold_reply(size) if size > LARGE_REPLY else _do_nothing

    async def _send(self, reply: HttpReply, request_id: str, scope: Mapping[str, Any], send: Send) -> None:
        """Returns when most of the reply has left. Ends the connection of a caller that takes too long to read it."""
        try:
            async with asyncio.timeout(self._frontend.calls.admission.bounds.read_seconds):
                await _send_messages(reply, request_id, send)
        except TimeoutError:
            abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, _do_nothing)
            abort()


def plain_path(path: str) -> str:
    """Removes from a path what clients add by accident: doubled slashes, and one at the end."""
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"


async def _send_messages(reply: HttpReply, request_id: str, send: Send) -> None:
    """Sends a reply as messages of ASGI."""
    body_headers = [(b"content-type", reply.content_type.encode()), (b"content-length", b"%d" % len(reply.body))]
    headers = [
        *(body_headers if reply.status != NO_CONTENT else ()),
        (b"x-content-type-options", b"nosniff"),
        (REQUEST_ID.encode(), request_id.encode("latin-1", "replace")),
        *((key.encode(), value.encode("latin-1", "replace")) for key, value in reply.headers),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    large, body = len(reply.body) > LARGE_REPLY, memoryview(reply.body)
    if large:
        for start in range(0, len(body), SENT_AT_ONCE):
            await send({"type": "http.response.body", "body": body[start : start + SENT_AT_ONCE], "more_body": True})
    # after a large one, waits until most of it has left
    await send({"type": "http.response.body", "body": b"" if large else reply.body, "more_body": False})


def _do_nothing() -> None:
    """Stands for the release of a small reply, which is not counted."""


def _timeout_of(headers: Headers) -> float | None:
    """The time in seconds that the caller waits, or None where it does not say. Raises InvalidInput."""
    text = next((value for name, value in headers if name == TIMEOUT), None)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT:
        raise InvalidInput(f"{TIMEOUT} must be seconds, more than 0 and at most {MAX_TIMEOUT}", field=TIMEOUT)
    return seconds


async def _while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Returns the result of `work`. Where the caller disconnects first, cancels it and raises CallerGone."""
    task = asyncio.current_task()
    assert task is not None
    leaving = asyncio.ensure_future(receive())  # the body has been read: only the end of the connection can follow

    def cancel_work(_: object) -> None:
        task.cancel()

    leaving.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and not leaving.cancelled():
            task.uncancel()
            raise CallerGone from None
        raise
    finally:
        leaving.remove_done_callback(cancel_work)
        leaving.cancel()
