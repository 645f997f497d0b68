"""All settings of the frontend."""

import os
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from frontend_service.domain.limits import Limits
from shared.server.admission import Bounds
from shared.settings import LISTED, Address, ServiceSettings, address


def _target(value: str) -> str:
    address(value.rpartition("/")[2])
    return value


HOST_NAME = re.compile(r"\*|\[[0-9a-f:.]+\]|[a-z0-9._-]+", re.I)
ORIGIN = re.compile(r"\*|(?P<scheme>[a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.I)
UNTOLD_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of origins."""


def _host_name(value: str) -> str:
    if HOST_NAME.fullmatch(value) is None:
        raise ValueError("must be *, a host's name or its address (IPv6 in brackets), without scheme, port or path")
    return value.lower()


def _origin(value: str) -> str:
    found = ORIGIN.fullmatch(value)
    if found is None:
        raise ValueError("must be *, SCHEME://HOST or SCHEME://HOST:PORT, with nothing behind it")
    return value.lower().removesuffix(UNTOLD_PORTS.get((found["scheme"] or "").lower(), ""))


Target = Annotated[str, AfterValidator(_target)]
Targets = Annotated[tuple[Target, ...], *LISTED, Field(min_length=1)]
Door = Literal["grpc", "tei", "http"]
ChosenDoors = Annotated[tuple[Door, ...], *LISTED, Field(min_length=1)]
HostNames = Annotated[tuple[Annotated[str, AfterValidator(_host_name)], ...], *LISTED]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], *LISTED]
Count = Annotated[int, Field(ge=1)]
_DEFAULTS, _BOUNDS = Limits(), Bounds()


class FrontendSettings(ServiceSettings):
    """The Selvage frontend: takes texts over gRPC, tokenises them, asks a worker, answers. Needs no model files.

    Every flag is also an environment variable: --max-texts is SELVAGE_FRONTEND_MAX_TEXTS.
    """

    model_config = SettingsConfigDict(env_prefix="SELVAGE_FRONTEND_", cli_prog_name="python -m frontend_service")

    worker: Targets = Field(
        ("127.0.0.1:50061",),
        description="Where a worker serves: HOST:PORT, or dns:///NAME:PORT for every address of a name. May be given "
        "several times, or with commas between.",
    )
    listen: Address = Field("127.0.0.1:50051", description="HOST:PORT to serve on; port 0 takes a free one.")
    doors: ChosenDoors = Field(
        ("grpc", "tei"),
        description="What clients may speak, with commas between. grpc: selvage.v1, which has everything. tei: tei.v1, "
        "the gRPC contract of text-embeddings-inference, on the same port. http: JSON in the shapes of OpenAI, Cohere, "
        "vLLM and text-embeddings-inference, on --http-listen.",
    )
    api_keys: str = Field(
        "",
        description="File with the hashes of the API keys that may ask, and what each may have; see python -m "
        "frontend_service.access.new_key. It is read again when it changes. Default: everybody may ask.",
    )
    worker_ca: str = Field(
        "",
        description="File of PEM with who signs for workers, which are then spoken to over TLS. This file and the next "
        "two are read anew for each connection. Default: plain text.",
    )
    worker_certificate: str = Field("", description="File of PEM with the certificate that workers ask for (--tls-ca).")
    worker_key: str = Field("", description="File of PEM with its private key.")
    worker_name: str = Field(
        "", description="The name in the workers' certificates. Default: the one that --worker finds them by."
    )
    http_listen: Address = Field("127.0.0.1:8080", description="HOST:PORT for the door http; port 0 takes a free one.")
    http_host: HostNames = Field(
        (),
        description="A name by which the door http is asked for, without a port. May be given several times, or with "
        "commas between; * takes any. Requests for other hosts are refused, so that no web page that points a name of "
        "its own here is served. Default: on a loopback address localhost and loopback addresses, elsewhere any.",
    )
    http_cors_origin: Origins = Field(
        (),
        description="An origin, SCHEME://HOST or SCHEME://HOST:PORT, whose pages browsers let use the door http. May "
        "be given several times, or with commas between; * takes all. Default: none but its own.",
    )
    threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads that tokenise and finish results; 0: one a core, 8 at most."
    )
    default_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        30.0, description="Seconds for a call that brings no deadline of its own."
    )
    drain_delay: Annotated[float, Field(ge=0)] = Field(
        1.0, description="Seconds between NOT_SERVING and the last accepted call, so that balancers look elsewhere."
    )
    max_requests_at_once: Count = Field(
        _BOUNDS.requests, description="Requests that are being answered; above it they are refused as OVERLOADED."
    )
    max_bytes_at_once: Count = Field(
        _BOUNDS.size, description="Bytes of requests that are being answered, likewise; one always may be."
    )
    max_slow_reads: Count = Field(
        _BOUNDS.slow_reads, description="Requests that take over 10 ms to arrive, at once, likewise."
    )
    max_streams: Count = Field(
        _BOUNDS.streams, description="Streams that are open (EmbedStream, and those of tei.v1), likewise."
    )
    auto_truncate: bool = Field(
        False,
        description="Whether texts over the model's limit are cut where a request does not say whether to cut them, by "
        "any API; default: they are refused. A request that says so is obeyed either way.",
    )
    max_texts: Count = Field(_DEFAULTS.texts, description="Texts in one Embed, Tokenize or list of queries.")
    max_documents: Count = Field(_DEFAULTS.documents, description="Documents in one Rerank, Score or MaxSim.")
    max_text_bytes: Count = Field(_DEFAULTS.text_bytes, description="UTF-8 bytes of one text.")
    max_request_tokens: Count = Field(_DEFAULTS.request_tokens, description="Tokens of one request.")
    max_request_rows: Count = Field(_DEFAULTS.request_rows, description="Rows of either side of one MaxSim.")
    max_similarities: Count = Field(_DEFAULTS.similarities, description="Products of two rows in one MaxSim.")
    max_vector_elements: Count = Field(
        _DEFAULTS.vector_elements,
        description="Rows x dimensions of either side of one MaxSim, or of one Embed before pooling.",
    )
    max_scores: Count = Field(_DEFAULTS.scores, description="Scores of one Score or MaxSim.")
    max_pooled_tokens: Count = Field(
        _DEFAULTS.pooled_tokens,
        description="Tokens of one text whose rows are pooled (pool_factor). Clustering n takes 10 x n x n bytes, one "
        "text at a time, and half of its time nothing else runs in the frontend: about 40 MiB and 0.1 s for 2,048, "
        "160 MiB and 0.5 s for 4,096, 650 MiB and 3 s for 8,192.",
    )

    @model_validator(mode="after")
    def _way(self) -> Self:
        pairs = (("worker_certificate", "worker_key"), ("worker_key", "worker_certificate"))
        return self._needs(*pairs, ("worker_certificate", "worker_ca"), ("worker_name", "worker_ca"))

    @property
    def bounds(self) -> Bounds:
        """What there may be of requests at once."""
        return Bounds(
            requests=self.max_requests_at_once,
            size=self.max_bytes_at_once,
            slow_reads=self.max_slow_reads,
            streams=self.max_streams,
        )

    @property
    def limits(self) -> Limits:
        """What a request may hold."""
        return Limits(
            texts=self.max_texts,
            documents=self.max_documents,
            text_bytes=self.max_text_bytes,
            request_tokens=self.max_request_tokens,
            request_rows=self.max_request_rows,
            scores=self.max_scores,
            similarities=self.max_similarities,
            vector_elements=self.max_vector_elements,
            pooled_tokens=self.max_pooled_tokens,
            auto_truncate=self.auto_truncate,
        )

    @property
    def thread_count(self) -> int:
        """Threads of the pool."""
        return self.threads or min(8, os.cpu_count() or 1)
