"""All settings of the frontend: flags, environment variables, defaults."""

import os
import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from frontend_service.domain.limits import Limits
from shared.server.admission import Bounds
from shared.settings import LISTED, Address, OptionalAddress, ServiceSettings, address


def _target(value: str) -> str:
    address(value.rpartition("/")[2])
    return value


FINGERPRINT = re.compile(r"[0-9a-f]{64}")
ORIGIN = re.compile(r"\*|(?P<scheme>[a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.I)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of origins."""


def _origin(value: str) -> str:
    match = ORIGIN.fullmatch(value)
    if match is None:
        raise ValueError("must be *, SCHEME://HOST or SCHEME://HOST:PORT, with nothing behind it")
    return value.lower().removesuffix(DEFAULT_PORTS.get((match["scheme"] or "").lower(), ""))


def _fingerprint(value: str) -> str:
    if FINGERPRINT.fullmatch(value) is None:
        raise ValueError("must be a whole fingerprint, 64 digits of 0-9 and a-f, as the log of the worker tells it")
    return value


Target = Annotated[str, AfterValidator(_target)]
Targets = Annotated[tuple[Target, ...], *LISTED, Field(min_length=1)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], *LISTED]
Fingerprints = Annotated[tuple[Annotated[str, AfterValidator(_fingerprint)], ...], *LISTED]
Count = Annotated[int, Field(ge=1)]
_LIMITS, _BOUNDS = Limits(), Bounds()


class FrontendSettings(ServiceSettings):
    """The Selvage frontend: takes requests over gRPC and HTTP, tokenises them, sends jobs to workers, and replies.

    It needs no model files. Every flag is also an environment variable: --http-listen is SELVAGE_FRONTEND_HTTP_LISTEN.
    """

    model_config = SettingsConfigDict(env_prefix="SELVAGE_FRONTEND_", cli_prog_name="python -m frontend_service")

    worker: Targets = Field(
        ("127.0.0.1:50061",),
        description="Address of a worker: HOST:PORT, or dns:///NAME:PORT for a worker at each address of the name. May "
        "be given several times, or once with commas between.",
    )
    fingerprint: Fingerprints = Field(
        (),
        description="Fingerprint of a model to serve, as the worker's log line ready and GetModel tell it; workers "
        "with another model are not used. May be given several times, or once with commas between, for several models. "
        "Default: any, and of several workers with one name and other weights the first that is ready wins, in each "
        "frontend by itself.",
    )
    listen: Address = Field("127.0.0.1:50051", description="HOST:PORT for gRPC; port 0 takes a free one.")
    api_keys: str = Field(
        "",
        description="File with the hashes of API keys and the limits of each; see python -m "
        "frontend_service.access.new_key. It is read again when it changes. Default: calls need no key.",
    )
    worker_ca: str = Field(
        "",
        description="File in PEM format with the certificates that must have signed those of the workers, which are "
        "then reached over TLS, by the name or address in --worker. It is read again for each connection. Default: "
        "plain text.",
    )
    tls_ca: str = Field(
        "",
        description="File of PEM with who signs for clients: only they connect, each with its own certificate. It is "
        "read again when it changes.",
    )
    http_listen: OptionalAddress = Field(
        "",
        description="HOST:PORT on which to serve HTTP too: JSON in the shapes of OpenAI, Cohere, vLLM and "
        "text-embeddings-inference; port 0 takes a free one. On a loopback address requests must be for localhost or a "
        "loopback address. Default: gRPC alone.",
    )
    http_cors_origin: Origins = Field(
        (),
        description="An origin, SCHEME://HOST or SCHEME://HOST:PORT, whose web pages may use the HTTP API. May be "
        "given several times, or once with commas between; * accepts all. Default: only its own origin.",
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads that tokenise and finish results; 0: one for each core, 8 at most."
    )
    default_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        30.0, description="Deadline of a call that has none, in seconds."
    )
    drain_delay: Annotated[float, Field(ge=0)] = Field(
        1.0,
        description="Seconds between NOT_SERVING and the last accepted call, so that load balancers turn away first.",
    )
    max_requests_at_once: Count = Field(
        _BOUNDS.requests, description="Most requests in progress; more are refused as OVERLOADED."
    )
    auto_truncate: bool = Field(
        False,
        description="Whether texts over the model's limit are cut if the request does not say, by any API. Default: "
        "they are refused. Requests that say whether to cut are obeyed either way.",
    )
    max_text_bytes: Count = Field(
        _LIMITS.text_bytes, description="Most UTF-8 bytes of one text with its prompt, whether or not it may be cut."
    )
    max_request_tokens: Count = Field(_LIMITS.request_tokens, description="Most tokens of one request.")

    @model_validator(mode="after")
    def _clients_are_signed_for(self) -> Self:
        return self._needs(("tls_ca", "tls_certificate"))

    @property
    def bounds(self) -> Bounds:
        """The limits of requests in progress."""
        return Bounds(requests=self.max_requests_at_once)

    @property
    def limits(self) -> Limits:
        """The limits of a single request."""
        return Limits(
            text_bytes=self.max_text_bytes, request_tokens=self.max_request_tokens, auto_truncate=self.auto_truncate
        )

    @property
    def thread_count(self) -> int:
        """The number of threads that tokenise and finish results."""
        return self.threads or min(8, os.cpu_count() or 1)
