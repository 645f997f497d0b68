"""Settings that both processes have, and how settings are read: flags over environment over defaults."""

import sys
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

LogFormat = Literal["json", "console"]
"""The format of log lines: JSON objects, or text for a person."""


def address(value: str) -> str:
    """Validates an address of the form HOST:PORT; raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise ValueError("must be HOST:PORT")
    return value


def _listed(value: object) -> object:
    if isinstance(value, str):
        return tuple(filter(None, map(str.strip, value.split(","))))
    return value


Address = Annotated[str, AfterValidator(address)]
LISTED = (NoDecode, BeforeValidator(_listed))
"""Annotations of a setting that may occur several times, or once with commas."""


def _address_or_none(value: str) -> str:
    return value and address(value)


class ServiceSettings(BaseSettings):
    """Every field is a flag (--log-level) and an environment variable (SELVAGE_..._LOG_LEVEL)."""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True, extra="forbid"
    )

    log_format: LogFormat = Field("json", description="json: one object a line. console: for a person.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    log_calls: bool = Field(False, description="Whether each call has a line in the log; failures always have.")
    metrics: Annotated[str, AfterValidator(_address_or_none)] = Field(
        "",
        description="HOST:PORT on which Prometheus reads metrics over HTTP; port 0 takes a free one. Default: none, so "
        "that replicas on one host do not collide.",
    )
    traces: str = Field(
        "",
        description="URL of an OpenTelemetry collector that takes OTLP over gRPC, such as http://127.0.0.1:4317; needs "
        "the extra trace. Default: OTEL_EXPORTER_OTLP_ENDPOINT of the environment, else no spans are sent.",
    )
    reflection: bool = Field(True, description="Whether clients may list the services (gRPC reflection).")
    tls_certificate: str = Field(
        "",
        description="File of PEM with the certificate to serve TLS with, and those between it and its root. This file "
        "and the next two are read again when they change. Default: plain text.",
    )
    tls_key: str = Field("", description="File of PEM with its private key, not encrypted.")
    tls_ca: str = Field(
        "",
        description="File of PEM with who signs for clients: only they connect, each with its own certificate.",
    )
    link_secret_file: str = Field(
        "",
        description="File with a secret, which workers ask for and frontends show. It is read again when it changes; "
        "to change it, workers take several, one a line, and frontends show the first.",
    )
    drain_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0, description="After SIGTERM, time for accepted requests to finish, in seconds."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        pairs = (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate"), ("tls_ca", "tls_certificate"))
        return self._needs(*pairs)

    def _needs(self, *pairs: tuple[str, str]) -> Self:
        """Raises ValueError where the first of a pair of settings is given without the second."""
        for flag, needed in pairs:
            if getattr(self, flag) and not getattr(self, needed):
                raise ValueError(f"--{flag.replace('_', '-')} needs --{needed.replace('_', '-')}")
        return self

    @classmethod
    def read(cls, arguments: list[str]) -> Self:
        """Reads settings from the command line and the environment; a bad value ends the process with status 2."""
        try:
            return cls(_cli_parse_args=arguments)  # type: ignore[call-arg]
        except ValidationError as error:
            for problem in error.errors():
                if not problem["loc"]:  # a rule about several settings
                    print(problem["msg"].removeprefix("Value error, "), file=sys.stderr)
                    continue
                flag = str(problem["loc"][0]).replace("_", "-")
                print(f"--{flag} = {problem['input']!r}: {problem['msg']}", file=sys.stderr)
            raise SystemExit(2) from None
