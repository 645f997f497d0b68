"""The bytes of a connection -> requests, one after the other. httptools (llhttp) parses; this file corrects it.

Specification: RFC 9112. Heads that llhttp accepts and we do not are refused by `head.py`, in the path's dialect.
"""

import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

import httptools

HEAD_BYTES, HEADERS = 64 * 1024, 100
"""Limits of a head, and of the bytes around bodies (chunk sizes, trailers): in bytes, and in header lines, since each
takes a hundred bytes of memory beside its own."""

OTHER_VERSIONS = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})
"""Messages of llhttp about versions of HTTP other than 1.x."""

WHOLE_URL = re.compile(rb"https?://((?!:)[^/?]+)(.*)", re.I)

Headers = list[tuple[bytes, bytes]]


class InvalidRequest(Exception):
    """Bytes that are no request, or no body of one; nothing after them can be parsed. `status`: that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """The head of a request. `path` is unquoted; `headers` have names in lower case; `length`: that of the body, or 0;
    `keep_alive`: another request may follow.
    """

    method: str
    path: str
    query: bytes
    version: str
    headers: Headers
    length: int
    keep_alive: bool


class RequestReader(Protocol):
    """The object that a Parser calls: for each request with its head, any number of parts, and its end."""

    def on_head(self, head: RequestHead) -> None:
        """Begins the next request."""

    def on_part(self, part: bytes) -> None:
        """Takes the next bytes of the body."""

    def on_end(self, keep_alive: bool) -> None:
        """Ends the request. `keep_alive`: another one may follow, trailers considered."""


class Parser:
    """The parser of one connection.

    `awaits_head`: true until the first request is whole, and from the first byte behind a request until the next one
    is whole.
    """

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._parser = self._new()
        self._url, self._headers, self._length = b"", Headers(), 0
        self._is_behind_head = self._is_offer = False
        self._beside = self._lines = 0  # bytes around bodies in a row, and those of them in whole lines
        self.awaits_head = True

    def _new(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # such data is skipped, and spoils no response
        return parser

    def close(self) -> None:
        """Breaks both reference cycles, so that the garbage collector need not. Nothing may be fed afterwards."""
        del self._parser, self._reader

    def feed(self, data: bytes) -> None:
        """Parses `data` and calls the reader. Raises InvalidRequest and any error of the reader.

        llhttp stops after the head of a request that offers another protocol (Upgrade), and takes the body for bytes of
        that protocol. Offers are ignored (RFC 9110, 7.8): such a head is parsed again, without its offer.
        """
        self._beside += len(data)
        self.awaits_head = True
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                except httptools.HttpParserUpgrade as stopped:
                    data = self._head_without_offer() + data[stopped.args[0] :] if self._is_offer else b""
                    self._parser = self._new()
                else:
                    break
        except httptools.HttpParserError as error:
            raise _cause(error) from None
        self._check(self._beside)

    def _head_without_offer(self) -> bytes:
        """The head that was parsed last as bytes, without its Upgrade header."""
        first = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        lines = (b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade")
        return b"".join((first, *lines, b"\r\n"))

    def _check(self, size: int) -> None:
        if size > HEAD_BYTES:
            raise InvalidRequest(431, f"a head, or what comes beside a body, may have {HEAD_BYTES} bytes")
        if len(self._headers) > HEADERS:
            raise InvalidRequest(431, f"a request may have {HEADERS} header lines")

    # Called by httptools.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._length = b"", [], 0
        self._is_behind_head, self.awaits_head = False, True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._lines += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += len(name) + len(value) + len(b": \r\n")
        if not self._is_behind_head:  # trailers are no headers (RFC 9110, 6.5.1)
            name = name.lower()
            if name == b"content-length":
                self._length = int(value)
            self._headers.append((name, value))
        self._check(self._lines)

    def on_headers_complete(self) -> None:
        self._beside, self._lines, self._is_behind_head = 0, 0, True
        is_tunnel = self._parser.get_method() == b"CONNECT"
        self._is_offer = self._parser.should_upgrade() and not is_tunnel
        if not self._is_offer:
            self._reader.on_head(self._head(is_tunnel))

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        self._reader.on_part(body)

    def on_message_complete(self) -> None:
        self._beside, self._lines, self.awaits_head = 0, 0, False
        if not self._is_offer:
            self._reader.on_end(self._parser.should_keep_alive())

    def _head(self, is_tunnel: bool) -> RequestHead:
        version = self._parser.get_http_version()
        path, query = self._target()
        return RequestHead(
            method=self._parser.get_method().decode(),
            path=unquote(path) if "%" in path else path,
            query=query,
            version=version,
            headers=self._headers,
            length=self._length,
            keep_alive=version == "1.1" and self._parser.should_keep_alive() and not is_tunnel,
        )

    def _target(self) -> tuple[str, bytes]:
        """Path and query. The host of a whole URL replaces the header `host` (RFC 9112, 3.2.2)."""
        target = self._url.partition(b"#")[0]
        whole = WHOLE_URL.fullmatch(target)
        if whole is not None:
            host, target = (b"host", whole[1]), whole[2] if whole[2].startswith(b"/") else b"/" + whole[2]
            self._headers = [host if header[0] == b"host" else header for header in self._headers]
        path, _, query = target.partition(b"?")
        return path.decode(), query


def _cause(error: httptools.HttpParserError) -> BaseException:
    """The error that a callback raised, or the parser's error as an InvalidRequest."""
    if isinstance(error, httptools.HttpParserCallbackError) and error.__context__ is not None:
        return error.__context__
    if str(error) in OTHER_VERSIONS:
        return InvalidRequest(505, "this port speaks HTTP/1.1; gRPC has a port of its own")
    return InvalidRequest(400, f"this is no request of HTTP/1.1: {error}")
