"""How clients connect, and what they send with every call: channel options, TLS, key, metadata. Makes no calls."""

import ipaddress
import json
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc

from selvage.target import check_target

MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message, which is also the service's limit in both directions."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a client; `Client` explains them. `metadata` holds all headers, the key's among them."""

    target: str
    model: str
    key: str = field(repr=False)
    tls: TLS | None
    timeout: float
    retries: int
    in_flight: int
    metadata: Metadata = field(repr=False)

    @classmethod
    def of(
        cls,
        target: str,
        *,
        model: str,
        key: str,
        tls: TLS | bool,
        timeout: float,
        retries: int,
        in_flight: int,
        fairness_key: str,
        priority: str,
        metadata: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]],
    ) -> "Settings":
        """Makes settings of the arguments of a client. Raises ValueError for values that make no sense."""
        for name, value, least in (("timeout", timeout, 0.0), ("retries", retries, 0), ("in_flight", in_flight, 1)):
            if not value >= least:
                raise ValueError(f"{name} is {value}, must be at least {least}")
        if key and not tls and is_public(target):
            warnings.warn(f"the key goes to {target} in plain text; give tls=True", UserWarning, stacklevel=3)
        options = {AUTHORIZATION: f"Bearer {key}" if key else "", KEY: fairness_key, PRIORITY: priority}
        extra = metadata.items() if isinstance(metadata, Mapping) else metadata
        headers = (*((name, value) for name, value in options.items() if value), *extra)
        for name, value in headers:
            _check_header(name, value)
        return cls(
            target=target,
            model=model,
            key=key,
            tls=TLS() if tls is True else tls or None,
            timeout=timeout,
            retries=retries,
            in_flight=in_flight,
            metadata=headers,
        )

    def channel(self, module: Any) -> Any:
        """Makes a new channel. `module`: `grpc` or `grpc.aio`. Raises ValueError for a target that makes no sense."""
        check_target(self.target, tls=self.tls is not None)
        if self.tls is None:
            return module.insecure_channel(self.target, options=CHANNEL_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.tls.ca, self.tls.key, self.tls.certificate)
        named = [("grpc.ssl_target_name_override", self.tls.name)] if self.tls.name else []
        return module.secure_channel(self.target, credentials, options=[*CHANNEL_OPTIONS, *named])

    def headers(self) -> tuple[str, Metadata]:
        """A request id, and the metadata of a call with it. The id is new unless the caller's metadata has one."""
        request_id = next((value for name, value in self.metadata if name == REQUEST_ID), None)
        if request_id is not None:
            text = request_id if isinstance(request_id, str) else request_id.decode(errors="replace")
            return text, self.metadata
        new_id = uuid.uuid4().hex
        return new_id, (*self.metadata, (REQUEST_ID, new_id))

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
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract", "vsock"):
        return False
    if scheme in ("dns", "ipv4", "ipv6"):
        target = rest.rpartition("/")[2]
    return any(_is_public_host(_host(address)) for address in target.split(","))


def _host(address: str) -> str:
    """The host of an address, without its port."""
    address = unquote(address)
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _is_public_host(host: str) -> bool:
    try:
        number = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "." in host.strip(".") and not host.rstrip(".").endswith((*LOCAL, ".cluster"))
    return not (number.is_private or number.is_loopback or number.is_link_local)
