"""The port of the HTTP API on the wire: bytes of a request are bytes of that request, and each has one response."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from asgi import HttpApi, Worker
from wire import AFTER, BODY, PATH, chunked, exchange, post, refuses_strangers, responses, serving, statuses

CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"
HOST = b"Host: localhost\r\n"
H2C = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)
WEBSOCKET = (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[tuple[str, int]]:
    async with serving(HttpApi(Worker())) as address:
        yield address


@pytest.mark.parametrize(
    ("raw", "wanted"),
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
        (post(CLOSE) + AFTER * 9, [200]),
        *(  # without one length there is no telling where the next request begins
            (post(CLOSE, *head, body=chunked() if b"hunked" in b"".join(head) else BODY, framed=False), [status])
            for head, status in (
                ((b"Content-Length: 16", CHUNKED), 400),
                ((CHUNKED, b"Content-Length: 16"), 400),
                ((b"Content-Length: 16", b"Content-Length: 16"), 400),
                ((b"Content-Length: 16", b"Content-Length: 17"), 400),
                ((b"Content-Length: 16", b" folded"), 400),
                ((b"X: a\nContent-Length: 16",), 400),
                ((b"Transfer-Encoding: gzip",), 400),
                ((b"Transfer-Encoding: xchunked",), 400),
                ((b"Transfer-Encoding: chunked, gzip",), 400),
                ((b"Transfer-Encoding: gzip, chunked",), 501),
                ((b"Transfer-Encoding: identity", CHUNKED), 501),
            )
        ),
    ],
)
async def test_what_is_one_request(address: tuple[str, int], raw: bytes, wanted: list[int]) -> None:
    """Another one behind it is answered where it is clear that it is one; else the connection ends."""
    replies = await exchange(address, raw + AFTER)
    assert statuses(replies) == wanted
    if raw.startswith(b"POST") and len(wanted) == 1:
        assert replies[0].headers["connection"] == "close"


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
        (only,) = await exchange(address, post(CLOSE, *lines))
        assert (only.status, "times" in only.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, (b"upgrade: TLS/1.0", b"connection: upgrade")])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_an_offered_upgrade_is_ignored(
    address: tuple[str, int], offer: tuple[bytes, ...], is_chunked: bool
) -> None:
    """The body arrives, with the head or behind it, and the next request of the connection is another one."""
    body = b'{"input": ["a", "b c"]}'
    whole = post(*offer, CHUNKED, body=chunked(body), framed=False) if is_chunked else post(*offer, body=body)
    head, _, rest = whole.partition(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n", rest, AFTER]
    for parts, pause in (([whole + AFTER], 0.0), (pieces, 0.0), (pieces, 0.1)):
        first, second = await exchange(address, *parts, pause=pause)
        assert (first.status, len(first.json["data"])) == (200, 2)
        assert (second.status, second.json["object"]) == (200, "list")


async def test_the_body_of_an_offer_is_no_request(address: tuple[str, int]) -> None:
    """Though it spells one, and comes when the response could have been there."""
    spelt = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = post(*H2C[:1], CLOSE, *H2C[1:], body=spelt).removesuffix(spelt)
    (only,) = await exchange(address, head, spelt, pause=0.3)
    assert only.status == 400
    assert "the body is no JSON" in only.json["error"]["message"]


SPLIT = (
    post(*H2C) + post(CHUNKED, body=chunked(trailers=[b"x-request-id: trailer"]), framed=False) + post(b"X: y") + AFTER
)


async def test_every_byte_may_come_alone(address: tuple[str, int]) -> None:
    assert statuses(await exchange(address, *(SPLIT[at : at + 1] for at in range(len(SPLIT))), pause=0.0)) == [200] * 4


@pytest.mark.parametrize("headers", [(), (b"Authorization: Bearer wrong",)])
async def test_a_trailer_does_not_authenticate(headers: tuple[bytes, ...]) -> None:
    async with serving(HttpApi(Worker(), refuses_strangers())) as address:
        for trailers, status in (((b"Authorization: Bearer right",), 401), ((), 401)):
            body = chunked(trailers=trailers)
            assert statuses(await exchange(address, post(CLOSE, CHUNKED, *headers, body=body, framed=False))) == [
                status
            ]
        body = chunked(trailers=(b"Authorization: Bearer wrong",))
        right = (CLOSE, CHUNKED, b"Authorization: Bearer right")
        assert statuses(await exchange(address, post(*right, body=body, framed=False))) == [200]


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_a_trailer_is_no_header(address: tuple[str, int], pause: float) -> None:
    """Whether it comes with the body or after the answer could have begun."""
    for trailer in (
        b"X-Request-Id: theirs",
        b"Content-Type: text/plain",
        b"Selvage-Timeout: none",
        b"Selvage-Priority: none",
        b"Content-Encoding: gzip",
        b"Host: elsewhere.example",
        b"Upgrade: h2c\r\nConnection: Upgrade",
        b"Expect: anything",
    ):
        whole = post(CHUNKED, b"X-Request-Id: ours", body=chunked(trailers=[trailer]), framed=False)
        at = whole.index(trailer)
        first, second = await exchange(address, whole[:at], whole[at:] + AFTER, pause=pause)
        assert (first.status, first.headers["x-request-id"], second.status) == (200, "ours", 200), trailer


async def test_a_trailer_that_ends_the_connection_loses_no_response(address: tuple[str, int]) -> None:
    """Nothing is read behind it, and the response does not say that something would be."""
    raw = post(CHUNKED, body=chunked(trailers=[CLOSE]), framed=False)
    (only,) = await exchange(address, raw + AFTER)
    assert (only.status, only.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    "body",
    [
        b"5\n" + BODY[:5] + b"\n0\n\n",
        b"-5\r\n" + BODY[:5] + b"\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\n" + BODY[:5],
        b"5\r\n" + BODY[:5] + b"\r\n0\r\nContent-Length: 9\r\n\r\n",
    ],
)
async def test_broken_chunks_are_refused(address: tuple[str, int], body: bytes) -> None:
    """Once, whether the request is being read by then or not."""
    whole = post(CHUNKED, body=body, framed=False)
    for pieces in ([whole + AFTER], [whole.removesuffix(body), body, AFTER]):
        replies = await exchange(address, *pieces, pause=0.05)
        assert statuses(replies) == [400]
        assert replies[0].headers["connection"] == "close"


async def test_who_asks_whether_to_send_is_told(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    whole = post(b"Expect: 100-continue", CLOSE)
    writer.write(whole.removesuffix(BODY))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert statuses(responses(await reader.read())) == [200]
    writer.close()


@pytest.mark.parametrize("path", [PATH, b"/none"])
async def test_who_was_not_asked_to_send_ends_its_connection(address: tuple[str, int], path: bytes) -> None:
    """Its body may come or not: nothing that does is a request."""
    raw = post(b"Expect: 100-continue", b"Content-Encoding: gzip", path=path, body=AFTER)
    (only,) = await exchange(address, raw.removesuffix(AFTER), AFTER, pause=0.1)
    assert (only.status, only.headers["connection"]) == (415 if path == PATH else 404, "close")


async def test_a_reply_to_head_has_no_body(address: tuple[str, int]) -> None:
    raw = b"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    reader, writer = await asyncio.open_connection(*address)
    writer.write(raw + AFTER)
    raw = await reader.read()
    head, _, rest = raw.partition(b"\r\n\r\n")
    (second,) = responses(rest)
    assert b"content-length: %d" % len(second.body) in head
    writer.close()
