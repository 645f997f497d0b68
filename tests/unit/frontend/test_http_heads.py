"""Heads of requests at the HTTP API: first lines, hosts, and what may come once."""

import pytest
from asgi import HttpApi, Worker
from wire import AFTER, post, refuses_strangers, serving, statuses, told

CLOSE = b"Connection: close"
HOST = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("asked", "told_back"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Host: elsewhere.example\r\n\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\nHost: a/b\r\n\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\nHost: a@b\r\n\r\n", [400, 200]),
        (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", [200, 200]),
        (b"GET http://localhost:80/health?x HTTP/1.1\r\nHost: other\r\n\r\n", [200, 200]),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [404, 200]),
        (b"\r\n\r\nGET /health HTTP/1.1\r\n" + HOST + b"\r\n\r\n", [200, 200]),
        (b"GET /health HTTP/1.0\r\n\r\n", [200]),
        (b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", [200]),
        (b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", [505]),
        (b"GET /health HTTP/0.9\r\n\r\n", [505]),
        (b"GET /health HTTP/3.0\r\n" + HOST + b"\r\n", [400]),
        (b"GET /health\r\n\r\n", [505]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        (b"GET /health HTTP/1.1\nHost: localhost\n\n", [400]),
        (b"get /health HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"GET /health HTTP/1.1\r\n " + HOST + b"\r\n", [400]),
        (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"GET /health x HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [400]),  # TLS
        (b"CONNECT localhost:1 HTTP/1.1\r\n" + HOST + b"\r\n", [400]),
        (b"POST /embed HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [501]),
    ],
)
async def test_a_first_line_and_its_hosts(api: HttpApi, asked: bytes, told_back: list[int]) -> None:
    """Another request behind it is answered where it is clear that it is one."""
    async with serving(api) as address:
        assert statuses(await told(address, asked + AFTER)) == told_back


@pytest.mark.parametrize(
    "lines",
    [
        (b"Authorization: Bearer right", b"Authorization: Bearer right"),
        (b"Authorization: Bearer right", b"Authorization: Bearer wrong"),
        (b"Content-Type: text/plain",),
        (b"Selvage-Timeout: 1", b"selvage-timeout: 100"),
    ],
)
async def test_what_may_come_once_comes_once(lines: tuple[bytes, ...]) -> None:
    """Else others, in front, could have looked at the other one."""
    async with serving(HttpApi(Worker(), refuses_strangers())) as address:
        (only,) = await told(address, post(CLOSE, *lines))
        assert (only.status, "times" in only.json["error"]["message"]) == (400, True)
