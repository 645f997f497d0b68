"""Bytes of a connection -> requests, one after the other. llhttp reads, by httptools; here is where that errs.

Specification: RFC 9112. What the parser takes and we do not is refused by `head.py`, in the words of the path's shape.
"""

import re
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

import httptools

OTHER_VERSIONS = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})
"""What llhttp says of HTTP that is not 1.x."""

WHOLE_URL = re.compile(rb"https?://([^/?]*)(.*)", re.I)

Headers = list[tuple[bytes, bytes]]


class NoRequest(Exception):
    """What comes is no request, or not the body of one, and nothing behind it can be understood. `status`: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a request. `path` is unquoted; `headers`: their names in small letters; `length`: its body's or 0."""

    method: str
    path: str
    query: bytes
    version: str
    headers: Headers
    length: int
    keep_alive: bool
    is_tunnel: bool = field(default=False)


class Reader(Protocol):
    """Who is told of requests."""

    def on_head(self, head: Head) -> None: ...

    def on_part(self, part: bytes) -> None:
        """Of the body."""

    def on_end(self, keep_alive: bool) -> None:
        """The request is whole. `keep_alive`: whether another one may follow, as the whole of it says."""


class Parser:
    """Reads one connection. `beside`: bytes that came beside bodies in a row; `is_in_head`: a request, or what stands
    where one should begin, has begun and its head is not whole.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._parser = self._new()
        self._url, self._headers, self._length = b"", Headers(), 0
        self._is_behind_head = self._is_offer = False
        self.beside, self.is_in_head = 0, False

    def _new(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is skipped, and spoils no response
        return parser

    def close(self) -> None:
        """Ends the circle of references between the two."""
        del self._parser

    def feed(self, data: bytes) -> None:
        """Tells the reader what is in it. Raises NoRequest.

        llhttp stops behind the head of a request that offers another protocol, and takes its body for that protocol's.
        Offers are ignored (RFC 9110, 7.8), so such a head is read again, without its offer.
        """
        self.beside += len(data)
        self.is_in_head = True
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as stopped:
                    data = self._head_again() + data[stopped.args[0] :] if self._is_offer else b""
                    self._parser = self._new()
                else:
                    break
        except httptools.HttpParserError as error:
            raise _told(error) from None

    def _head_again(self) -> bytes:
        first = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        lines = (b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade")
        return b"".join((first, *lines, b"\r\n"))

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._length = b"", [], 0
        self._is_behind_head, self.is_in_head = False, True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_behind_head:
            return  # trailers are no headers (RFC 9110, 6.5.1)
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.beside, self._is_behind_head = 0, True
        is_tunnel = self._parser.get_method() == b"CONNECT"
        self._is_offer = self._parser.should_upgrade() and not is_tunnel
        if not self._is_offer:
            self._reader.on_head(self._head(is_tunnel))

    def on_body(self, body: bytes) -> None:
        self.beside = 0
        self._reader.on_part(body)

    def on_message_complete(self) -> None:
        self.beside, self.is_in_head = 0, False
        if not self._is_offer:
            self._reader.on_end(self._parser.should_keep_alive())

    def _head(self, is_tunnel: bool) -> Head:
        version = self._parser.get_http_version()
        path, query = self._target()
        return Head(
            method=self._parser.get_method().decode(),
            path=unquote(path) if "%" in path else path,
            query=query,
            version=version,
            headers=self._headers,
            length=self._length,
            keep_alive=version == "1.1" and self._parser.should_keep_alive() and not is_tunnel,
            is_tunnel=is_tunnel,
        )

    def _target(self) -> tuple[str, bytes]:
        """Path and query. A whole URL tells the host too, instead of the header (RFC 9112, 3.2.2)."""
        target = self._url.partition(b"#")[0]
        whole = WHOLE_URL.fullmatch(target)
        if whole is not None:
            host, target = (b"host", whole[1]), whole[2] if whole[2].startswith(b"/") else b"/" + whole[2]
            self._headers = [host if header[0] == b"host" else header for header in self._headers]
        path, _, query = target.partition(b"?")
        return path.decode(), query


def _told(error: httptools.HttpParserError) -> BaseException:
    if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
        return error.__context__  # a bug of ours
    if str(error) in OTHER_VERSIONS:
        return NoRequest(505, "this port speaks HTTP/1.1; gRPC has a port of its own")
    return NoRequest(400, f"this is no request of HTTP/1.1: {error}")
