"""Options of all channels and servers, and the full names of the gRPC services of each process.

Each option was tried with grpcio 1.85; docs/decisions.md has the reasons. The names are read from the contracts, so
that a service is written down once.
"""

from typing import Any

from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2
from selvage.worker.v1 import worker_pb2
from shared.value_codec import MESSAGE_BYTES
from tei.v1 import tei_pb2

REQUEST_BYTES = 16 * 1024 * 1024
"""Most bytes of a message that a frontend takes. Its replies may be larger, and so may a worker's jobs."""
CONNECTIONS = 4096
"""Most connections of a port."""
LINK_VERSION = 4
"""Version of the contract between frontend and worker, which both send when they attach."""

Options = list[tuple[str, int]]

PENDING = ("grpc.server.max_pending_requests", "grpc.server.max_pending_requests_hard_limit")
PENDING_CALLS = 100_000


def server_options(*, connection_age: bool, received: int = MESSAGE_BYTES) -> Options:
    """`connection_age`: whether clients reconnect every five minutes, so that balancers see new replicas.

    `received`: most bytes of a message that comes to the server.
    """
    ages = [("grpc.max_connection_age_ms", 300_000), ("grpc.max_connection_age_grace_ms", 600_000)]
    return [
        ("grpc.max_receive_message_length", received),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        # Compressed messages are refused before they are unpacked: 59 KB of gzip can be 60 MiB of zeros.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # What a call may send before it is read stays at 64 KiB; by measured bandwidth it would be megabytes a call.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.so_reuseport", 0),  # else a second server binds the same port silently
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # A peer that has gone without a word is noticed, and what it holds is let go.
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.http2.ping_timeout_ms", 5_000),
        # Connections: so many, 16 KiB each; without a handshake or a call they are closed after a while.
        ("grpc.max_allowed_incoming_connections", CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 600_000),
        # More calls wait in the client: twice what a frontend answers at once, so that refusal is told by name.
        ("grpc.max_concurrent_streams", 4096),
        # Of more calls than this that Python has not taken yet, grpc cancels some at random; ours are refused by name.
        (PENDING[0], PENDING_CALLS),
        (PENDING[1], PENDING_CALLS),
        *(ages if connection_age else []),
    ]


def channel_options(received: int = MESSAGE_BYTES) -> Options:
    """`received`: most bytes of a message that comes over the channel."""
    return [
        ("grpc.max_receive_message_length", received),
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.per_rpc_retry_buffer_size", MESSAGE_BYTES),  # else a large request silently gets no retry
        ("grpc.enable_http_proxy", 0),  # an http_proxy meant for other things would catch even loopback targets
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.http2.ping_timeout_ms", 5_000),  # keepalive_timeout_ms does nothing: a hang was seen after 74 s
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection: the old one may be dead
    ]


def services_of(*contracts: Any) -> tuple[str, ...]:
    """Full names of the services in generated modules, in order."""
    services = (service for contract in contracts for service in contract.DESCRIPTOR.services_by_name.values())
    return tuple(service.full_name for service in services)


PUBLIC_SERVICES = services_of(embedding_pb2, ranking_pb2, classification_pb2, model_pb2)
"""Services of a frontend for selvage.v1."""

TEI_SERVICES = services_of(tei_pb2)
"""Services of a frontend for clients of text-embeddings-inference."""

WORKER_SERVICES = services_of(worker_pb2)
"""Services of a worker, for frontends."""
