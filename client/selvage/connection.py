"""How clients connect: what a target looks like, channel options, TLS, key and metadata. Makes no calls."""

import ipaddress
import json
import re
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict
from urllib.parse import unquote

import grpc
import grpc.aio

DEFAULT = "127.0.0.1:50051"
"""The address at which a frontend listens for gRPC unless it is told otherwise."""
URL = re.compile(r"(https?|grpcs?|tcp)://", re.I)
LOOKED_UP = re.compile(r"dns:(//[^/]*/|/)?|ipv[46]:/*")
"""Beginnings of targets that are followed by one address, or by several with commas between."""
ADDRESS = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/\s]+)(:(?P<port>[0-9]+))?")
OTHER_SCHEMES = ("unix:", "unix-abstract:", "vsock:", "xds:")
"""Schemes of gRPC without a host or a port; others have `://`."""
NO_GRPC = "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame"
"""Words of gRPC for a server that answers in another protocol."""
LISTEN = f"give the address of a frontend's --listen (default: {DEFAULT})"
OF_HTTP = f"what answers there is not gRPC but perhaps HTTP; {LISTEN}, not that of its --http-listen"
OF_A_WORKER = f"the service there has no such method; {LISTEN}, not that of a worker"
MESSAGE_BYTES = 64 * 1024 * 1024
"""Most bytes of a reply. A service takes requests of 16 MiB, and calls with several entries make no larger ones."""
CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES),  # else gRPC resends no large request that never left
    ("grpc.enable_http_proxy", 0),  # a proxy in the environment is meant for other programs
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),  # one connection a client, so that closing the client closes it
    # Where a name has many addresses, calls take them in turn, so that a retry reaches another frontend.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
]
AUTHORIZATION, KEY, PRIORITY, REQUEST_ID = "authorization", "selvage-key", "selvage-priority", "x-request-id"
Metadata = tuple[tuple[str, str | bytes], ...]
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""Metadata as callers pass it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """Contents of PEM files for a connection with TLS.

    `ca`: the authorities that may sign the service's certificate; None: those that gRPC trusts. `certificate` and
    `key`: the client's own, where the service requires one. `name`: the name in the service's certificate, where it is
    not the one in the address.
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")


class ClientOptions(TypedDict, total=False):
    """The options of both clients, which `Client` explains."""

    model: str
    key: str
    tls: TLS | bool
    timeout: float
    retries: int
    in_flight: int
    fairness_key: str
    priority: str
    metadata: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a client; `Client` explains them. `all_metadata`: all headers, the key's among them.

    Raises ValueError for values that make no sense.
    """

    target: str = DEFAULT
    model: str = ""
    key: str = field(default="", repr=False)
    tls: TLS | bool = False
    timeout: float = 60.0
    retries: int = 5
    in_flight: int = 4
    fairness_key: str = ""
    priority: str = ""
    metadata: Headers = field(default=(), repr=False)
    all_metadata: Metadata = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_target(self.target, tls=bool(self.tls))
        least = {"timeout": (self.timeout, 0.0), "retries": (self.retries, 0), "in_flight": (self.in_flight, 1)}
        for name, (value, smallest) in least.items():
            if not value >= smallest:
                raise ValueError(f"{name} is {value}, must be at least {smallest}")
        if self.key and not self.tls and is_public(self.target):
            warnings.warn(f"the key goes to {self.target} in plain text; give tls=True", UserWarning, stacklevel=4)
        bearer = f"Bearer {self.key}" if self.key else ""
        options = {AUTHORIZATION: bearer, KEY: self.fairness_key, PRIORITY: self.priority}
        extra = self.metadata.items() if isinstance(self.metadata, Mapping) else self.metadata
        headers = (*((name, value) for name, value in options.items() if value), *extra)
        for name, value in headers:
            _check_header(name, value)
        object.__setattr__(self, "all_metadata", headers)

    def channel(self) -> grpc.aio.Channel:
        """Makes a new channel, of the event loop that runs."""
        if not self.tls:
            return grpc.aio.insecure_channel(self.target, options=CHANNEL_OPTIONS)
        tls = TLS() if self.tls is True else self.tls
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        override = [("grpc.ssl_target_name_override", tls.name)] if tls.name else []
        return grpc.aio.secure_channel(self.target, credentials, options=[*CHANNEL_OPTIONS, *override])

    def headers(self) -> tuple[str, Metadata]:
        """A request id, and the metadata of a call with it. The id is new unless the caller's metadata has one."""
        request_id = next((value for name, value in self.all_metadata if name == REQUEST_ID), None)
        if request_id is not None:
            text = request_id if isinstance(request_id, str) else request_id.decode(errors="replace")
            return text, self.all_metadata
        new_id = uuid.uuid4().hex
        return new_id, (*self.all_metadata, (REQUEST_ID, new_id))

    def __str__(self) -> str:
        secured = "TLS" if self.tls else "plain text"
        model = f", model={self.model!r}" if self.model else ""
        return f"{self.target!r}, {secured}{model}, timeout={self.timeout:g}"


def _check_header(name: str, value: str | bytes) -> None:
    """Raises ValueError for a header that gRPC would refuse; its text leaves out the value, which may be secret."""
    if name != name.lower():
        raise ValueError(f"the metadata {name!r} is to be in small letters")
    if name.endswith("-bin"):
        return
    encoded = value.encode(errors="replace") if isinstance(value, str) else value
    if not all(0x20 <= byte <= 0x7E for byte in encoded) or (isinstance(value, str) and not value.isascii()):
        raise ValueError(f"the value of the metadata {name!r} has characters that a header may not have")


LOCAL = (".local", ".localhost", ".internal", ".lan", ".home.arpa", ".svc")
"""Ends of names that only a local network or this machine has."""


def is_public(target: str) -> bool:
    """Whether a target may lie outside the local network: an internet address, or a name with a dot."""
    matches = [] if target.startswith(OTHER_SCHEMES) else map(ADDRESS.fullmatch, _addresses(target))
    return any(_is_public_host(match["host"].strip("[]")) for match in matches if match)


def _is_public_host(host: str) -> bool:
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." in host.strip(".") and not host.rstrip(".").endswith((*LOCAL, ".cluster"))
    return not (number.is_private or number.is_loopback or number.is_link_local)


def check_target(target: str, *, tls: bool = False) -> None:
    """Raises ValueError where a target can be no address of a frontend. Without a port gRPC tries 443, that of TLS."""
    if url := URL.match(target):
        hint = " Give tls=True for TLS." if url[1].lower() in ("https", "grpcs") else ""
        why = f", without {url[0]}; calls go to the port of gRPC (--listen), not to that of HTTP (--http-listen).{hint}"
    elif target.startswith(OTHER_SCHEMES) or ("://" in target and not LOOKED_UP.match(target)):
        return
    else:
        addresses = _addresses(target)
        ports = [match["port"] for match in map(ADDRESS.fullmatch, addresses) if match]
        if len(ports) == len(addresses) and all(0 < int(port or 443 * tls) < 65536 for port in ports):
            return
        why = ": it names no port" if ports == [None] * len(addresses) else ""
    raise ValueError(f"target is {target!r}, must be host:port, such as {DEFAULT}{why}")


def _addresses(target: str) -> list[str]:
    return LOOKED_UP.sub("", unquote(target), count=1).split(",")


def explained(code: grpc.StatusCode, message: str) -> str:
    """The message of a failure that did not come from a frontend's service, with what it says of the target, if any."""
    if code is grpc.StatusCode.UNAVAILABLE and NO_GRPC in message:
        return f"{OF_HTTP} ({message})"
    if code is grpc.StatusCode.UNIMPLEMENTED and message == "Method not found!":
        return f"{OF_A_WORKER} ({message})"
    return message
