"""All settings of the frontend: flags, environment variables, defaults."""

import os
import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from frontend_service.domain.limits import Limits
from shared.server.admission import Bounds
from shared.settings import LISTED, Address, ServiceSettings, address


def _target(value: str) -> str:
    address(value.rpartition("/")[2])
    return value


HOST_NAME = re.compile(r"\*|\[[0-9a-f:.]+\]|[a-z0-9._-]+", re.I)
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
ORIGIN = re.compile(r"\*|(?P<scheme>[a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.I)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Ports that browsers leave out of origins."""
PREFIX = "SELVAGE_FRONTEND_"
FORMER_FLAG, FORMER_VARIABLE = re.compile(r"--doors(?==|$)"), PREFIX + "DOORS"
"""The name that --apis had before, which is still accepted."""


def _host_name(value: str) -> str:
    if HOST_NAME.fullmatch(value) is None:
        raise ValueError("must be *, a host's name or its address (IPv6 in brackets), without scheme, port or path")
    return value.lower()


def _origin(value: str) -> str:
    match = ORIGIN.fullmatch(value)
    if match is None:
        raise ValueError("must be *, SCHEME://HOST or SCHEME://HOST:PORT, with nothing behind it")
    return value.lower().removesuffix(DEFAULT_PORTS.get((match["scheme"] or "").lower(), ""))


def _network(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        raise ValueError(f"must be an IP address or a network such as 10.0.0.0/8: {error}") from None


def _fingerprint(value: str) -> str:
    if FINGERPRINT.fullmatch(value) is None:
        raise ValueError("must be a whole fingerprint, 64 digits of 0-9 and a-f, as the log of the worker tells it")
    return value


Target = Annotated[str, AfterValidator(_target)]
Targets = Annotated[tuple[Target, ...], *LISTED, Field(min_length=1)]
Api = Literal["grpc", "tei", "http"]
ChosenApis = Annotated[tuple[Api, ...], *LISTED, Field(min_length=1)]
HostNames = Annotated[tuple[Annotated[str, AfterValidator(_host_name)], ...], *LISTED]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], *LISTED]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], *LISTED]
Fingerprints = Annotated[tuple[Annotated[str, AfterValidator(_fingerprint)], ...], *LISTED]
Count = Annotated[int, Field(ge=1)]
_DEFAULTS, _BOUNDS = Limits(), Bounds()
LARGE_BYTES_A_SECOND = 32 * 1024 * 1024
"""Bytes a second that a caller's large requests are read at while others ask: a quarter of a core, or so."""


class _FormerVariables(PydanticBaseSettingsSource):
    """The environment variable of --apis under its former name."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of `apis`, None where the variable is not set; no other field has a former name."""
        return os.environ.get(FORMER_VARIABLE) if field_name == "apis" else None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The values that are set."""
        value = os.environ.get(FORMER_VARIABLE)
        return {} if value is None else {"apis": value}


class FrontendSettings(ServiceSettings):
    """The Selvage frontend: takes requests over gRPC and HTTP, tokenises them, sends jobs to workers, and replies.

    It needs no model files. Every flag is also an environment variable: --max-texts is SELVAGE_FRONTEND_MAX_TEXTS.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, cli_prog_name="python -m frontend_service")
    former_variables = frozenset({FORMER_VARIABLE})

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
    apis: ChosenApis = Field(
        ("grpc", "tei"),
        description="APIs to serve, with commas between. grpc: selvage.v1, which has everything. tei: tei.v1, "
        "the gRPC contract of text-embeddings-inference, on the same port. http: JSON in the shapes of OpenAI, Cohere, "
        "vLLM and text-embeddings-inference, on --http-listen, which turns it on by itself where --apis is not set.",
    )
    api_keys: str = Field(
        "",
        description="File with the hashes of API keys and the limits of each; see python -m "
        "frontend_service.access.new_key. It is read again when it changes. Default: calls need no key.",
    )
    worker_ca: str = Field(
        "",
        description="File in PEM format with the certificates that must have signed those of the workers, which are "
        "then reached over TLS. This file and the next two are read again for each connection. Default: plain text.",
    )
    worker_certificate: str = Field(
        "", description="File in PEM format with the frontend's certificate, for workers that ask for one (--tls-ca)."
    )
    worker_key: str = Field("", description="File in PEM format with the private key of that certificate.")
    worker_name: str = Field(
        "", description="The name in the workers' certificates. Default: the name or address in --worker."
    )
    http_listen: Address = Field(
        "127.0.0.1:8080",
        description="HOST:PORT for HTTP; port 0 takes a free one. Without --apis it adds the HTTP API to the others.",
    )
    http_host: HostNames = Field(
        (),
        description="A host name that HTTP requests may be sent to, without a port. May be given several times, or "
        "once with commas between; * accepts any. Requests for other hosts are refused, so that web pages which point "
        "their own name at this address are not served. Default: on a loopback address localhost and loopback "
        "addresses, elsewhere any.",
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
    max_bytes_at_once: Count = Field(
        _BOUNDS.size, description="Most bytes of requests in progress, likewise; a single request may have more."
    )
    max_slow_reads: Count = Field(
        _BOUNDS.slow_reads, description="Most requests that are arriving for over 10 ms, likewise."
    )
    max_streams: Count = Field(
        _BOUNDS.streams,
        description="Most open streams (EmbedStream, and those of tei.v1), likewise. One caller may have no more of "
        "them than are left for others: alone half of them. A caller is an API key; without keys it is an address, "
        "behind --trusted-proxy a selvage-key.",
    )
    trusted_proxy: Networks = Field(
        (),
        description="Address or network (10.0.0.7, 10.0.0.0/8) of a proxy that many callers come through. It may have "
        "any number of connections, where other addresses have no more than are left for others, and its header "
        "selvage-key tells callers apart. May be given several times, or once with commas between. Default: none.",
    )
    auto_truncate: bool = Field(
        False,
        description="Whether texts over the model's limit are cut if the request does not say, by any API. Default: "
        "they are refused. Requests that say whether to cut are obeyed either way.",
    )
    max_texts: Count = Field(_DEFAULTS.texts, description="Most texts in one Embed, Tokenize or list of queries.")
    max_documents: Count = Field(_DEFAULTS.documents, description="Most documents in one Rerank, Score or MaxSim.")
    max_text_bytes: Count = Field(_DEFAULTS.text_bytes, description="Most UTF-8 bytes of one text with its prompt.")
    max_request_tokens: Count = Field(_DEFAULTS.request_tokens, description="Most tokens of one request.")
    max_request_rows: Count = Field(_DEFAULTS.request_rows, description="Most rows of either side of one MaxSim.")
    max_similarities: Count = Field(_DEFAULTS.similarities, description="Most products of two rows in one MaxSim.")
    max_vector_elements: Count = Field(
        _DEFAULTS.vector_elements,
        description="Most rows x dimensions of either side of one MaxSim, or of one Embed before pooling.",
    )
    max_scores: Count = Field(_DEFAULTS.scores, description="Most scores of one Score or MaxSim.")
    max_pooled_tokens: Count = Field(
        _DEFAULTS.pooled_tokens,
        description="Most tokens of one text whose rows are pooled (pool_factor). Clustering n rows takes 10 x n x n "
        "bytes, one text at a time, and for half of its time nothing else runs in the frontend: about 40 MiB and 0.1 s "
        "for 2,048 rows, 160 MiB and 0.5 s for 4,096, 650 MiB and 3 s for 8,192.",
    )
    max_spans: Count = Field(_DEFAULTS.spans, description="Most spans of all texts of one Embed.")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The usual sources, then the former environment variable."""
        return (*sources, *named.values(), _FormerVariables(settings_cls))

    @classmethod
    def read(cls, arguments: list[str]) -> Self:
        """See `ServiceSettings.read`; also accepts the former flag."""
        return super().read([FORMER_FLAG.sub("--apis", argument) for argument in arguments])

    @model_validator(mode="after")
    def _http_is_served(self) -> Self:
        """Serves HTTP where an address is set for it. Raises ValueError where the APIs leave it out."""
        if "http_listen" in self.model_fields_set and "http" not in self.apis:
            if "apis" in self.model_fields_set:
                apis = ",".join(self.apis)
                raise ValueError(f"--http-listen needs the HTTP API, and --apis is {apis}: add http to it")
            self.apis = (*self.apis, "http")
        return self

    @model_validator(mode="after")
    def _link_is_whole(self) -> Self:
        pairs = (("worker_certificate", "worker_key"), ("worker_key", "worker_certificate"))
        return self._needs(*pairs, ("worker_certificate", "worker_ca"), ("worker_name", "worker_ca"))

    @property
    def bounds(self) -> Bounds:
        """The limits of requests in progress."""
        return Bounds(
            requests=self.max_requests_at_once,
            size=self.max_bytes_at_once,
            slow_reads=self.max_slow_reads,
            streams=self.max_streams,
            pace=LARGE_BYTES_A_SECOND,
        )

    @property
    def limits(self) -> Limits:
        """The limits of a single request."""
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
            spans=self.max_spans,
            auto_truncate=self.auto_truncate,
        )

    @property
    def thread_count(self) -> int:
        """The number of threads that tokenise and finish results."""
        return self.threads or min(8, os.cpu_count() or 1)
