"""The way to the workers: plain text or TLS, and the secret that is shown. Knows no models and no jobs."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from shared.caller import AUTHORIZATION
from shared.security.link_secret import LinkSecret
from shared.server.rpc import channel_options

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTransport:
    """Of every link. The files, of PEM, are read anew for each channel.

    `ca`: who signs for workers; without it they are spoken to in plain text. `certificate` and `key`: what the
    frontend shows, where workers ask for it; `name`: the one in their certificates, where it is not the one they are
    found by; `secret`: what is shown with every call.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    name: str = ""
    secret: LinkSecret | None = None

    def channel(self, address: str, host: str) -> grpc.aio.Channel:
        """To HOST:PORT of a worker that was found by the name `host`. Raises OSError where a file is not there."""
        options: list[tuple[str, int | str]] = [*channel_options()]
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        options.append(("grpc.ssl_target_name_override", self.name or host))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None for plain text. Raises OSError."""
        if not self.ca:
            return None
        key, certificate = (Path(path).read_bytes() if path else None for path in (self.key, self.certificate))
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes(), key, certificate)

    @property
    def metadata(self) -> Metadata:
        """What goes with every call."""
        return () if self.secret is None else ((AUTHORIZATION, f"Bearer {self.secret.shown}"),)
