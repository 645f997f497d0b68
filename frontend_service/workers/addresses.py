"""The addresses of the workers behind a target. Standard library only."""

import asyncio
import socket

DNS = "dns:///"
REFRESH_SECONDS = 2.0
"""Seconds after which names are resolved again."""


def host_of(target: str) -> str:
    """The name or address in a target, without the port."""
    return target.removeprefix(DNS).rpartition(":")[0].strip("[]")


async def addresses_of(target: str) -> set[str]:
    """The target itself if it is HOST:PORT; for dns:///NAME:PORT each address of the name. Raises OSError for none."""
    if not target.startswith(DNS):
        return {target}
    host, _, port = target.removeprefix(DNS).rpartition(":")
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return {
        f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"
        for family, *_, address in entries
    }
