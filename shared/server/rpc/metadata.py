"""Metadata of a call <-> who calls."""

from typing import Any

from shared.caller import Caller, caller_of, chosen_id


def request_id_of(metadata: Any) -> str:
    """The caller's id where it gave a sensible one, else a new one."""
    return chosen_id(metadata or ())


def caller_in(method: str, name: str, context: Any) -> Caller:
    """Of a call's context; `name`: the request id. Raises InvalidInput for a priority that there is none."""
    metadata = context.invocation_metadata() or ()
    return caller_of(method, name, metadata, host=_host(context.peer()), remaining=context.time_remaining())


def _host(peer: str) -> str:
    """Of ipv4:10.0.0.7:4711 or ipv6:%5B::1%5D:4711, without the port: one machine is one caller."""
    return peer.rpartition(":")[0] if peer.startswith("ip") else peer
