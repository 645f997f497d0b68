"""One call over HTTP: head, route, caller, body, answer, reply. ASGI; `Calls` holds what is common to all calls.

Specification: asgi.readthedocs.io, HTTP 2.3; RFC 9110, 7.2, 10.1.1, 15.5.20; RFC 9112, 3.2, 6.1.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import structlog
from starlette import routing
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from frontend_service.api.http.error_replies import HttpError, dialect_of, error_reply
from frontend_service.api.http.routes import JSON, HttpCall, HttpReply, Route
from frontend_service.frontend import Frontend
from shared.caller import AUTHORIZATION, REQUEST_ID, Caller, caller_of, chosen_id, host_of, repeated
from shared.errors import Internal, InvalidInput, SelvageError, clip
from shared.security import is_loopback
from shared.server.admission import Admission, Holding

BODY_BYTES = 64 * 1024 * 1024
"""Longest body of a request."""
LARGE_REPLY = 64 * 1024
"""Size in bytes from which a reply is counted until it has left; smaller replies leave at once."""
SENT_AT_ONCE = 256 * 1024
"""Most bytes of a reply that are written at once. Python 3.11 copies what a full socket does not take of them."""
HOST, TIMEOUT = "host", "selvage-timeout"
MAX_TIMEOUT = 3600
"""Longest time that a caller may choose in the header TIMEOUT, in seconds."""
ONCE = (HOST, AUTHORIZATION, "content-type", TIMEOUT)
"""Headers that may come once: twice, they could contradict each other."""
AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(:[0-9]*)?")
ANY = "*"
EXPOSED_HEADERS = (REQUEST_ID, "retry-after", "retry-after-ms", "server-timing")
"""Headers of a reply that a page of another site may read."""
PROBES = frozenset({"/health", "/ping"})
"""Paths that are answered for any host: load balancers ask by address, and a probe only tells that the port serves."""
ABORT = "selvage.abort"
"""An extension of the ASGI scope: a function that ends the connection at once."""

Headers = Sequence[tuple[str, str]]
ObserveCall = Callable[[str, int, float], None]
"""A function that is called after each call with its method and route, its status and its seconds."""
T = TypeVar("T")

log = structlog.get_logger("server")


class CallerGone(asyncio.CancelledError):
    """The caller has disconnected, so no reply is sent."""


@lru_cache(16)
def _host_name(authority: str) -> tuple[str, bool]:
    """The name of HOST or HOST:PORT, in lower case, and whether it is one of loopback, or none. Clients send the same
    one with every request."""
    match = AUTHORITY.fullmatch(authority)
    name = match[1].lower().removesuffix(".") if match else authority
    return name, not name or is_loopback(f"{name}:0")


class App:
    """All routes of the HTTP API as an ASGI application."""

    def __init__(
        self,
        frontend: Frontend,
        routes: Iterable[Route],
        observe_call: ObserveCall | None = None,
        *,
        loopback: bool = False,
        origins: Iterable[str] = (),
    ) -> None:
        """`loopback`: whether requests must be for hosts of loopback. A web page can point a name of its own at the
        address of this machine; for a browser it is the same site then, and only the host's name shows the difference.
        `origins`: SCHEME://HOST[:PORT] of pages that may call the API, or `*` for all.
        """
        self.frontend, self.observe_call, self.loopback = frontend, observe_call, loopback
        self.routes = tuple(routes)
        self.local_routes = frozenset(route.name for route in self.routes if not route.needs_worker)
        paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            paths.setdefault(route.path, {})[route.method] = route
        router = routing.Router(
            [routing.Route(_pattern(path), PathApp(self, methods)) for path, methods in paths.items()],
            redirect_slashes=False,
            default=PathApp(self, {}),
        )
        self._app = (
            CORSMiddleware(
                router,
                allow_origins=tuple(origins),
                allow_methods=("GET", "HEAD", "POST"),
                allow_headers=(ANY,),
                expose_headers=EXPOSED_HEADERS,
            )
            if origins
            else router
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = plain_path(scope["path"])
        await self._app(scope, receive, send)


def plain_path(path: str) -> str:
    """Removes from a path what clients add by accident: doubled slashes, and one at the end."""
    return re.sub("/{2,}", "/", path).rstrip("/") or "/"


def _pattern(path: str) -> str:
    """The path of a route as Starlette writes it; the rest of a prefix may have slashes of its own."""
    return f"{path}{{rest:path}}" if path.endswith("/") and path != "/" else path


class PathApp:
    """The routes of one path, by their methods; none for paths that there are not."""

    def __init__(self, app: App, methods: Mapping[str, Route]) -> None:
        self._app, self._methods = app, methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        request_id, route, body = chosen_id(headers), None, Arrival(receive)
        release_reply = _do_nothing
        try:
            self._check_head(scope, headers)
            route = self._route(scope["method"])
            reply = await self._answer(route, scope, headers, request_id, body)
            release_reply = self._hold_reply(reply)
        except SelvageError as error:
            reply = self._error_reply(scope["path"], error)
        except CallerGone:
            return
        except Exception as raised:
            log.error("bug", method=scope["method"], path=scope["path"], exc_info=raised)
            reply = self._error_reply(scope["path"], Internal("a bug of the service, which its log tells"))
        if self._app.observe_call is not None:
            self._app.observe_call(route.name if route else "none", reply.status, time.monotonic() - start)
        try:
            # A body that was not asked for may come or not: nothing behind it can be told from it.
            await self._send(reply, request_id, scope, send, is_last=not body.is_begun and _waits(headers))
        except Exception as raised:
            log.error("bug", method=scope["method"], path=scope["path"], exc_info=raised)
            raise
        finally:
            release_reply()

    def _error_reply(self, path: str, error: SelvageError) -> HttpReply:
        """The reply in the dialect of the path, whatever the method."""
        dialect = next(iter(self._methods.values())).dialect if self._methods else dialect_of(path)
        return error_reply(dialect, error)

    def _check_head(self, scope: Scope, headers: Headers) -> None:
        """Raises HttpError for a head that is wrong on every path, and for hosts that are not served."""
        version, names = scope["http_version"], [name for name, _ in headers]
        if version not in ("1.0", "1.1"):
            raise HttpError(505, f"this port speaks HTTP/1.1, not {version}")
        for name in ONCE:
            if names.count(name) > 1:
                raise HttpError(400, repeated(name, names.count(name)))
        if version == "1.1" and HOST not in names:
            raise HttpError(400, f"{HOST} is missing, which HTTP/1.1 needs")
        for name, value in headers:
            if name == HOST and AUTHORITY.fullmatch(value) is None:
                raise HttpError(400, f"{HOST} is {clip(value)}, it must be HOST or HOST:PORT")
            if name == "transfer-encoding" and (value.lower() != "chunked" or version == "1.0"):
                raise HttpError(501, f"transfer-encoding is {clip(value)}, it may be chunked, in HTTP/1.1")
        if self._app.loopback and scope["path"] not in PROBES:
            for value in [value for name, value in headers if name == HOST]:
                host, is_loopback_name = _host_name(value)
                if not is_loopback_name:  # a request without a host comes from no browser
                    why = "and this port answers for this machine alone: localhost, 127.0.0.1"
                    raise HttpError(421, f"{HOST} is {clip(host)}, {why}")

    def _route(self, method: str) -> Route:
        """The route of a method. Raises HttpError."""
        if not self._methods:
            raise HttpError(404, "there is nothing at this path; /docs tells what there is")
        route = self._methods.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(self._methods)
            raise HttpError(405, f"this path takes {allowed}", (("allow", allowed),))
        return route

    async def _answer(
        self, route: Route, scope: Scope, headers: Headers, request_id: str, body: "Arrival"
    ) -> HttpReply:
        """Identifies the caller and answers the call."""
        calls = self._app.frontend.calls
        if route.is_open:
            return await route.endpoint(
                HttpCall(frontend=self._app.frontend, caller=Caller(method=route.name, request_id=request_id))
            )
        client = scope.get("client")
        caller = caller_of(
            route.name, request_id, headers, host=host_of(client[0]) if client else "", remaining=_timeout_of(headers)
        )
        caller = calls.identified(caller)
        path_end = scope["path_params"].get("rest", "")
        if not route.is_admitted:
            return await self._run_endpoint(route, path_end, caller, headers, body)
        return await calls.answer(caller, lambda: self._run_endpoint(route, path_end, caller, headers, body))

    async def _run_endpoint(
        self, route: Route, path_end: str, caller: Caller, headers: Headers, body: "Arrival"
    ) -> HttpReply:
        """Reads the body where the route takes one, and runs the endpoint."""
        frontend = self._app.frontend
        if route.body_type is None:
            return await route.endpoint(HttpCall(frontend=frontend, caller=caller, path_end=path_end))
        check_body_headers(headers)
        admission = frontend.calls.admission
        with admission.holding() as holding:
            content = await body.read(admission, holding)
            call = HttpCall(frontend=frontend, caller=caller, body=content, path_end=path_end)
            return await body.while_connected(route.endpoint(call))

    def _hold_reply(self, reply: HttpReply) -> Callable[[], None]:
        """Counts a large reply until the returned function is called. Raises Overloaded."""
        size = len(reply.body)
        return self._app.frontend.calls.admission.hold_reply(size) if size > LARGE_REPLY else _do_nothing

    async def _send(self, reply: HttpReply, request_id: str, scope: Scope, send: Send, *, is_last: bool) -> None:
        """Returns when most of the reply has left. Ends the connection of a caller that takes too long to read it."""
        try:
            async with asyncio.timeout(self._app.frontend.calls.admission.bounds.read_seconds):
                await _send_messages(reply, request_id, send, is_last=is_last)
        except TimeoutError:
            abort: Callable[[], None] = scope.get("extensions", {}).get(ABORT, _do_nothing)
            abort()


async def _send_messages(reply: HttpReply, request_id: str, send: Send, *, is_last: bool) -> None:
    """Sends a reply as messages of ASGI. `is_last`: the connection ends with it."""
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        (b"x-content-type-options", b"nosniff"),
        (REQUEST_ID.encode(), request_id.encode("latin-1", "replace")),
        *((key.encode(), value.encode("latin-1", "replace")) for key, value in reply.headers),
        *([(b"connection", b"close")] if is_last else ()),
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


def _waits(headers: Headers) -> bool:
    """Whether the caller waits for an invitation before it sends the body."""
    return any(name == "expect" and value.lower() == "100-continue" for name, value in headers)


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


def check_body_headers(headers: Headers) -> None:
    """Raises HttpError where the headers say that the body is too large or compressed, or not that it is JSON.

    A body that is not declared as JSON could come from any web page: browsers send it without a CORS preflight.
    """
    if not any(name == "content-type" and _is_json(value) for name, value in headers):
        raise HttpError(415, f"the body must be {JSON} and say so: with curl, add -H 'content-type: {JSON}'")
    for name, value in headers:
        if name == "content-encoding" and value.strip().lower() not in ("", "identity"):
            raise HttpError(415, "compressed bodies are not taken")
        if name == "content-length" and value.isdecimal():
            _check_length(int(value))


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or (kind.startswith("application/") and kind.endswith("+json"))


def _check_length(length: int) -> None:
    if length > BODY_BYTES:
        raise HttpError(413, f"the body has {length} bytes or more, the limit is {BODY_BYTES}")


class Arrival:
    """The body of a request: counted as it comes, limited in bytes and in time. `is_begun`: it was asked for."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_begun = False

    async def read(self, admission: Admission, holding: Holding) -> bytes:
        """Reads the whole body. Raises HttpError, Overloaded, DeadlineExceeded, CallerGone."""
        self.is_begun = True
        seconds = admission.bounds.read_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._receive_all(holding)
        except TimeoutError:
            raise admission.refusals.too_slow(seconds) from None

    async def _receive_all(self, holding: Holding) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            received: bytes = message.get("body", b"")
            _check_length(len(body) + len(received))
            holding.add(len(received))
            if not message.get("more_body", False):
                return bytes(body + received) if body else received
            body += received

    async def while_connected(self, work: Awaitable[T]) -> T:
        """Returns the result of `work`. Where the caller disconnects first, cancels it and raises CallerGone."""
        task = asyncio.current_task()
        assert task is not None
        leaving = asyncio.ensure_future(self._receive())  # the body is read: only the connection's end can follow

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
