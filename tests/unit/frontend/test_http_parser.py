"""The parser of the HTTP API: whatever comes, it is requests, each begun once and ended once, or it is refused."""

import random
from collections.abc import Iterator

import pytest

from frontend_service.api.http.parser import InvalidRequest, Parser, RequestHead

OFFER = (
    b"GET http://localhost:80/a?b#c HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Content-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n"
)
CHUNKS = (
    b"POST /%41%ff HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"\r\n3\r\nabc\r\n0\r\nA: b\r\nUpgrade: x\r\n\r\nCONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nxyz"
)
PREFACE = b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LETTERS = b" \r\n\t:/[]@?#%0a\x00\xff"


class Reader:
    """Notes requests, and that they come one after the other."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []
        self.is_open = False

    def on_head(self, head: RequestHead) -> None:
        assert not self.is_open
        self.is_open = True
        self.heads.append(head)
        self.bodies.append(b"")

    def on_part(self, part: bytes) -> None:
        assert self.is_open
        self.bodies[-1] += part

    def on_end(self, keep_alive: bool) -> None:
        assert self.is_open
        self.is_open = False


def spoilt(pick: random.Random) -> Iterator[bytes]:
    """Requests with up to three letters changed, dropped or added, in two pieces."""
    raw = bytearray(pick.choice((OFFER, CHUNKS, PREFACE)))
    for _ in range(pick.randint(0, 3)):
        at = pick.randrange(len(raw))
        raw[at : at + pick.randint(0, 1)] = bytes([pick.choice(LETTERS)])[: pick.randint(0, 1)]
    cut = pick.randrange(len(raw))
    yield bytes(raw[:cut])
    yield bytes(raw[cut:])


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_is_requests_or_refused(seed: int) -> None:
    """Nothing else is raised, and nothing is told twice."""
    pick = random.Random(seed)
    ends: set[str] = set()
    for _ in range(3000):
        reader = Reader()
        parser = Parser(reader)
        try:
            for piece in spoilt(pick):
                parser.feed(piece)
            ends.add("read")
        except InvalidRequest as error:
            ends.add(f"{error.status} {error.message}")
        for head, body in zip(reader.heads, reader.bodies, strict=True):
            assert len(body) <= max(head.length, len(CHUNKS))
    assert len(ends) > 10
    assert {end[:4] for end in ends} == {"read", "400 ", "505 "}


def test_an_offer_is_read_as_it_came_but_for_the_offer() -> None:
    """Head and body; what follows is another request."""
    reader = Reader()
    Parser(reader).feed(OFFER)
    first, second = reader.heads
    assert (first.method, first.path, first.query, first.version) == ("GET", "/a", b"b", "1.1")
    assert first.headers == [(b"host", b"localhost:80"), (b"connection", b"Upgrade"), (b"content-length", b"3")]
    assert (second.path, reader.bodies) == ("/", [b"abc", b""])


def test_a_bug_of_ours_is_no_fault_of_the_caller() -> None:
    """What a reader raises comes out as it is."""

    class Broken(Reader):
        def on_head(self, head: RequestHead) -> None:
            raise LookupError(head.path)

    with pytest.raises(LookupError):
        Parser(Broken()).feed(OFFER)
