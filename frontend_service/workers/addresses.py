"""Where the workers of a target are. Standard library only."""

import asyncio
import socket

DNS = "dns:///"
REFRESH_SECONDS = 2.0
"""Between two looks at a name."""


def host_of(target: str) -> str:
    """The name or address in it, without the port."""
    return target.removeprefix(DNS).rpartition(":")[0].strip("[]")


async def addresses_of(target: str) -> set[str]:
    """HOST:PORT as it is; of dns:///NAME:PORT every address of the name. Raises OSError where it has none."""
    if not target.startswith(DNS):
        return {target}
    host, _, port = target.removeprefix(DNS).rpartition(":")
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return {
        f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"
        for family, *_, address in found
    }
