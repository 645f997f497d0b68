"""Reads the caller and the request id from the metadata of a gRPC call."""

from typing import Any

from shared.caller import Caller, caller_of, chosen_id


def request_id_of(metadata: Any) -> str:
    """The request id from the metadata if it is usable, else a new one."""
    return chosen_id(metadata or ())


def caller_in(method: str, name: str, context: Any) -> Caller:
    """The caller of a call, from its context; `name`: the request id. Raises InvalidInput for an unknown priority."""
    metadata = context.invocation_metadata() or ()
    return caller_of(method, name, metadata, host=_host(context.peer()), remaining=context.time_remaining())


def _host(peer: str) -> str:
    """The peer ipv4:10.0.0.7:4711 or ipv6:%5B::1%5D:4711 without its port, so that a machine is one caller."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
