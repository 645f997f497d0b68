"""How the frontend reaches workers, by TLS or not; why a call did not reach one; what a worker says of itself.

That is its model's card, its limits, and what reads texts. Knows no health and no jobs.
"""

import asyncio
import socket
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from frontend_service.tokenizing.tokenizer import ModelTexts, read_files
from frontend_service.workers.job_stream import WrongReply
from selvage.worker.v1 import worker_pb2 as pb
from selvage.worker.v1 import worker_pb2_grpc
from shared.caller import AUTHORIZATION
from shared.card import ModelCard
from shared.errors import WorkerUnavailable, shorten
from shared.security import LinkSecret
from shared.server.options import channel_options
from shared.server.status import to_domain_error
from shared.value_codec import card_from_pb

DNS = "dns:///"
RECEIVED_BYTES = 2 * 1024 * 1024
"""Least limit for a worker's message: an honest one has less than a mebibyte beside the lengths of one result. Parsed,
a message takes up to thirty times its bytes."""
LENGTHS_BYTES = 8
"""Most bytes of a text's token rows and sparse entries, as two numbers of up to 268 million."""
NAME_DIFFERS = "Hostname Verification Check failed"
NOT_TLS = "WRONG_VERSION_NUMBER"
NOT_VERIFIED = "CERTIFICATE_VERIFY_FAILED: "
CLOSED = "Socket closed"
REFUSED = "Connection refused"
"""What gRPC's details say of a handshake that failed, by the reason."""
TIMEOUT = 10.0
"""Seconds for a description, and for all pieces of a tokenizer."""
Metadata = tuple[tuple[str, str], ...]


def received_bytes(texts: int) -> int:
    """Most bytes of a worker's message, where a request has so many texts: a result leaves with all its lengths."""
    return max(RECEIVED_BYTES, RECEIVED_BYTES // 2 + LENGTHS_BYTES * texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTransport:
    """Makes the channels of all links. The files, in PEM format, are read again for each channel.

    `ca`: the certificates that workers must be signed by; without it channels are plain text. `secret`: the link secret
    that goes with every call. `received`: most bytes of a message that comes.
    """

    ca: str = ""
    secret: LinkSecret | None = None
    received: int = RECEIVED_BYTES

    def channel(self, address: str, host: str) -> grpc.aio.Channel:
        """Makes a channel to HOST:PORT of a worker that was found by the name `host`. Raises OSError."""
        options: list[tuple[str, int | str]] = [*channel_options(received=self.received)]
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        options.append(("grpc.ssl_target_name_override", host))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials for TLS; None for plain text. Raises OSError where a file cannot be read."""
        if not self.ca:
            return None
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes())

    @property
    def metadata(self) -> Metadata:
        """The metadata of every call: the link secret, if there is one."""
        return () if self.secret is None else ((AUTHORIZATION, f"Bearer {self.secret.shown}"),)


def failure_of(error: grpc.aio.AioRpcError, address: str, host: str, transport: WorkerTransport) -> str:
    """The reason why a call to the worker at `address`, which was found by the name `host`, failed.

    gRPC reports every failed handshake as UNAVAILABLE, and tells them apart only in the details of the error.
    """
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
        return to_domain_error(error).message
    worker = f"the worker at {address}"
    if NAME_DIFFERS in details:
        return f"the certificate of {worker} is not for {host!r}, the name or address in --worker"
    if NOT_VERIFIED in details:
        why = details.partition(NOT_VERIFIED)[2].partition(":")[0]
        return f"the certificate of {worker} is not trusted: {why}; --worker-ca must have signed it"
    if NOT_TLS in details:
        return f"{worker} speaks plain text; --worker-ca asks for TLS"
    if CLOSED in details:
        wanted = "a certificate of its clients, and frontends have none" if transport.ca else "TLS: --worker-ca"
        return f"{worker} closed the connection at once; it may want {wanted}"
    if REFUSED in details:
        return f"nothing listens at {address}"
    return to_domain_error(error).message


async def describe(channel: grpc.aio.Channel, metadata: Metadata) -> tuple[list[ModelCard], pb.DescribeResponse]:
    """Asks a worker for its description; returns it with its cards: the model's, then those of the adapters over it.

    Raises grpc's AioRpcError, and WrongReply for one that makes no sense.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    message = await stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT, metadata=metadata)
    try:
        return [card_from_pb(card) for card in (message.card, *message.adapters)], message
    except ValueError as error:
        raise WrongReply("its card is not understood", shorten(str(error))) from None


async def fetch_texts(
    channel: grpc.aio.Channel, metadata: Metadata, card: ModelCard, message_threads: Executor
) -> ModelTexts:
    """Fetches in pieces what a worker's model reads texts with, its tokenizer above all, and loads it in a thread.

    Raises grpc's AioRpcError, and WrongReply where they are no tokenizer.
    """
    stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
    files: dict[str, bytearray] = {}
    async for piece in stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=TIMEOUT, metadata=metadata):
        files.setdefault(piece.name, bytearray()).extend(piece.data)
    load = partial(read_files, {name: bytes(content) for name, content in files.items()}, card)
    del files
    try:
        return await asyncio.get_running_loop().run_in_executor(message_threads, load)
    except ValueError as error:
        raise WrongReply("its tokenizer cannot be read", shorten(str(error))) from None


def allowed_cards(cards: Sequence[ModelCard], pins: Collection[str]) -> list[ModelCard]:
    """The cards of the models that may be served, by the fingerprints that a frontend is bound to; none: any model.

    Workers of one name may have other weights. Without pins each frontend chooses by itself which of them the name
    stands for, so two frontends may choose differently. Raises WorkerUnavailable where no model may be served.
    """
    allowed = [card for card in cards if not pins or card.fingerprint in pins]
    if not allowed:
        card, pinned = cards[0], ", ".join(sorted(pins))
        raise WorkerUnavailable(f"its {card.id} has the fingerprint {card.fingerprint}, --fingerprint is {pinned}")
    return allowed


def name_in(target: str) -> str:
    """The name or address in a target, without the port."""
    return target.removeprefix(DNS).rpartition(":")[0].strip("[]")


async def addresses_of(target: str) -> set[str]:
    """The target itself if it is HOST:PORT; for dns:///NAME:PORT each address of the name. Raises OSError for none."""
    if not target.startswith(DNS):
        return {target}
    host, _, port = target.removeprefix(DNS).rpartition(":")
    entries = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return {
        f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"
        for family, *_, address in entries
    }
