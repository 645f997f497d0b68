"""What a target must look like, and what a failed call tells of a wrong one. Makes no calls."""

import re
from urllib.parse import unquote

import grpc

DEFAULT = "127.0.0.1:50051"
"""The address at which a frontend listens for gRPC unless it is told otherwise."""
URL = re.compile(r"(https?|grpcs?|tcp)://", re.I)
LOOKED_UP = re.compile(r"dns:(//[^/]*/|/)?|ipv[46]:/*")
"""Beginnings of targets that are followed by one address, or by several with commas between."""
ADDRESS = re.compile(r"(\[[^\[\]]+\]|[^\[\]:/\s]+)(:(?P<port>[0-9]+))?")
OTHER_SCHEMES = ("unix:", "unix-abstract:", "vsock:", "xds:")
"""Schemes of gRPC without a host or a port; others have `://`."""
NO_GRPC = "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame"
"""Words of gRPC for a server that answers in another protocol."""
LISTEN = f"give the address of a frontend's --listen (default: {DEFAULT})"
OF_HTTP = f"what answers there is not gRPC but perhaps HTTP; {LISTEN}, not that of its --http-listen"
OF_A_WORKER = f"the service there has no such method; {LISTEN}, not that of a worker"


def check_target(target: str, *, tls: bool = False) -> None:
    """Raises ValueError where a target can be no address of a frontend. Without a port gRPC tries 443, that of TLS."""
    if url := URL.match(target):
        hint = " Give tls=True for TLS." if url[1].lower() in ("https", "grpcs") else ""
        why = f", without {url[0]}; calls go to the port of gRPC (--listen), not to that of HTTP (--http-listen).{hint}"
    elif target.startswith(OTHER_SCHEMES) or ("://" in target and not LOOKED_UP.match(target)):
        return
    else:
        addresses = LOOKED_UP.sub("", unquote(target), count=1).split(",")
        ports = [match["port"] for match in map(ADDRESS.fullmatch, addresses) if match]
        if len(ports) == len(addresses) and all(0 < int(port or 443 * tls) < 65536 for port in ports):
            return
        why = ": it names no port" if ports == [None] * len(addresses) else ""
    raise ValueError(f"target is {target!r}, must be host:port, such as {DEFAULT}{why}")


def explained(code: grpc.StatusCode, message: str) -> str:
    """The message of a failure that did not come from a frontend's service, with what it says of the target, if any."""
    if code is grpc.StatusCode.UNAVAILABLE and NO_GRPC in message:
        return f"{OF_HTTP} ({message})"
    if code is grpc.StatusCode.UNIMPLEMENTED and message == "Method not found!":
        return f"{OF_A_WORKER} ({message})"
    return message
