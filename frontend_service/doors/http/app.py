"""One call: route, caller, body, answer, reply. ASGI; what holds for every call is `Calls`'.

Specification: asgi.readthedocs.io, HTTP 2.3.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from frontend_service.doors.http.errors import NotHere, Shape, shape_of
from frontend_service.doors.http.reply import JSON, Reply
from frontend_service.doors.http.route import Call, Route
from frontend_service.frontend import Frontend
from shared.admission.holding import Holding
from shared.caller import REQUEST_ID, Caller, caller_of, chosen_id
from shared.errors import InvalidInput, SelvageError

BODY_BYTES = 64 * 1024 * 1024
"""Of a request, as over gRPC."""
LARGE_REPLY = 64 * 1024
"""Bytes; smaller ones leave at once."""
TIMEOUT = "selvage-timeout"
"""A header with the seconds that the caller waits."""

Headers = Sequence[tuple[str, str]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
TellCall = Callable[[str, int, float], None]
"""Told of each call: method and route, status, seconds."""
T = TypeVar("T")


class Gone(asyncio.CancelledError):
    """The caller is no longer there, so nobody is answered."""


class App:
    """All routes of the door, for an ASGI server."""

    def __init__(self, frontend: Frontend, routes: Iterable[Route], tell: TellCall | None = None) -> None:
        """`tell`: told of each call."""
        self._frontend, self._tell = frontend, tell
        self.routes = tuple(routes)
        self.known_here = frozenset(route.name for route in self.routes if not route.waits)
        self._paths: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            self._paths.setdefault(route.path, {})[route.method] = route

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        start = time.monotonic()
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        name, route, shape = chosen_id(headers), None, self._shape(scope["path"])
        try:
            route, rest = self._found(scope["method"], scope["path"])
            reply = await self._answered(route, rest, scope, headers, name, receive)
        except SelvageError as error:
            reply = shape.told(error, () if route is None else route.names)
        except Gone:
            return
        if self._tell is not None:
            self._tell(route.name if route else "none", reply.status, time.monotonic() - start)
        await self._sent(reply, shape, name, send)

    def _shape(self, path: str) -> Shape:
        """In whose words errors of a path are told, whatever the method."""
        methods = self._paths.get(path)
        return next(iter(methods.values())).shape if methods else shape_of(path)

    def _found(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the rest of the path. Raises NotHere."""
        methods, rest = self._paths.get(path), ""
        if methods is None:
            parent, slash, rest = path.rpartition("/")
            methods = self._paths.get(parent + slash) if parent and rest else None
        if methods is None:
            raise NotHere(404, "there is nothing at this path; /docs tells what there is")
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            known = ", ".join(methods)
            raise NotHere(405, f"this path takes {known}", (("allow", known),))
        return route, rest

    async def _answered(
        self, route: Route, rest: str, scope: Mapping[str, Any], headers: Headers, name: str, receive: Receive
    ) -> Reply:
        calls = self._frontend.calls
        if route.open:
            return await route.serve(Call(caller=Caller(method=route.name, request_id=name)))
        client = scope.get("client")
        caller = caller_of(route.name, name, headers, host=client[0] if client else "", remaining=_remaining(headers))
        caller = calls.identified(caller)
        return await calls.answer(caller, lambda: self._work(route, rest, caller, headers, receive))

    async def _work(self, route: Route, rest: str, caller: Caller, headers: Headers, receive: Receive) -> Reply:
        if route.takes is None:
            return await route.serve(Call(caller=caller, rest=rest))
        _check_type(headers)
        with self._frontend.calls.admission.holding() as holding:
            body = await _body(receive, _length(headers), holding)
            return await _while_there(receive, route.serve(Call(caller=caller, body=body, rest=rest)))

    async def _sent(self, reply: Reply, shape: Shape, name: str, send: Send) -> None:
        """A large one counts until the caller has it; the system ends connections that take nothing for long."""
        if len(reply.body) > LARGE_REPLY:
            try:
                is_read = self._frontend.calls.admission.hold_reply(len(reply.body))
            except SelvageError as error:
                reply = shape.told(error, ())
                is_read = _nothing
        else:
            is_read = _nothing
        try:
            headers = [
                (b"content-type", reply.content_type.encode()),
                (b"content-length", b"%d" % len(reply.body)),
                (REQUEST_ID.encode(), name.encode("latin-1", "replace")),
                *((key.encode(), value.encode("latin-1", "replace")) for key, value in reply.headers),
            ]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            large = len(reply.body) > LARGE_REPLY
            await send({"type": "http.response.body", "body": reply.body, "more_body": large})
            if large:  # returns when most of it has left
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            is_read()


def _nothing() -> None:
    """A small reply counts nowhere."""


def _remaining(headers: Headers) -> float | None:
    """Seconds that the caller waits. Raises InvalidInput."""
    given = next((value for name, value in headers if name == TIMEOUT), None)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise InvalidInput(f"{TIMEOUT} must be seconds, more than 0 and at most a day", field=TIMEOUT)
    return seconds


def _check_type(headers: Headers) -> None:
    """Raises NotHere for a body that says that it is no JSON, or that it is compressed."""
    for name, value in headers:
        if name == "content-type":
            kind = value.partition(";")[0].strip().lower()
            if kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
                raise NotHere(415, f"the body must be {JSON}")
        elif name == "content-encoding" and value.strip().lower() not in ("", "identity"):
            raise NotHere(415, "compressed bodies are not taken")


def _length(headers: Headers) -> int:
    """Of the body, 0 where it is not told. Raises NotHere before anything of one that is too large is read."""
    length = next((int(value) for name, value in headers if name == "content-length" and value.isdecimal()), 0)
    _check_length(length)
    return length


def _check_length(length: int) -> None:
    if length > BODY_BYTES:
        raise NotHere(413, f"the body has {length} bytes or more, the limit is {BODY_BYTES}")


async def _body(receive: Receive, length: int, holding: Holding) -> bytes:
    """`length`: as it was told. Raises NotHere, Overloaded, Gone."""
    if length:
        holding.add(length)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        _check_length(size)
        if size > holding.held:
            holding.add(size - holding.held)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


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
            raise Gone from None
        raise
    finally:
        leaving.remove_done_callback(left)
        leaving.cancel()
