"""Settings that both processes have, and how settings are read: flags over environment over defaults."""

import argparse
import inspect
import os
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, NoDecode, SettingsConfigDict

from shared.command import USAGE, CommandParser, nearest

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
OURS, OF_A_SERVICE = "SELVAGE_", re.compile(r"SELVAGE_(FRONTEND|WORKER)_")
"""Beginnings of environment variables: of all of ours, and of those that are settings of a service."""
LIKE_A_SETTING = 0.9
"""Least likeness to a setting of a variable that is refused though it does not begin as those of the service do."""
OF_KUBERNETES = re.compile(
    r"[^=]*(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_\d+_[A-Z]+(_PROTO|_PORT|_ADDR)?)=|[^=]*_PORT=[a-z]+://"
)
"""Variables, NAME=VALUE, that Kubernetes sets for each service of a namespace, such as one named selvage-worker."""
LISTED = (NoDecode, BeforeValidator(_listed))
"""Annotations of a setting that may occur several times, or once with commas."""


def _address_or_none(value: str) -> str:
    return value and address(value)


class ServiceSettings(BaseSettings):
    """Every field is a flag (--log-level) and an environment variable (SELVAGE_..._LOG_LEVEL)."""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True, extra="forbid"
    )
    former_variables: ClassVar[frozenset[str]] = frozenset()
    """Environment variables that are still read, by names that settings had before."""

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
        """Reads settings from the command line and the environment.

        A bad value, or the name of a flag or variable that does not exist, ends the process with status 2.
        """
        flags = CliSettingsSource[Any](cls, root_parser=cls._parser())(args=arguments)
        cls._check_variables(os.environ)
        try:
            return cls(_cli_settings_source=flags)  # type: ignore[call-arg]
        except ValidationError as error:
            for problem in error.errors():
                if not problem["loc"]:  # a rule about several settings
                    print(problem["msg"].removeprefix("Value error, "), file=sys.stderr)
                    continue
                flag, why = str(problem["loc"][0]).replace("_", "-"), problem["msg"].removeprefix("Value error, ")
                print(f"--{flag} = {problem['input']!r}: {why}", file=sys.stderr)
            raise SystemExit(USAGE) from None

    @classmethod
    def _parser(cls) -> CommandParser:
        return CommandParser(
            prog=cls.model_config["cli_prog_name"],
            description=inspect.getdoc(cls),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    @classmethod
    def _check_variables(cls, environment: Mapping[str, str]) -> None:
        """Ends the process with status 2 where a variable is meant to be a setting of this process and is none."""
        prefix = cls.model_config["env_prefix"]
        settings = {f"{prefix}{field}".upper() for field in cls.model_fields} | cls.former_variables
        fields = {setting.removeprefix(prefix): setting for setting in settings}
        for variable, value in environment.items():
            name = variable.upper()  # as pydantic reads them
            if not name.startswith(OURS) or name in settings or OF_KUBERNETES.match(f"{name}={value}"):
                continue
            if name.startswith(prefix):
                near = fields.get(nearest(name.removeprefix(prefix), fields), "")
            elif OF_A_SERVICE.match(name):
                continue  # the other one's
            elif not (near := fields.get(name.removeprefix(OURS)) or nearest(name, settings, LIKE_A_SETTING)):
                continue  # anybody may have variables that begin like ours
            meant = f"; did you mean {near}?" if near else ""
            print(f"{variable} is no setting{meant} (--help lists them as flags)", file=sys.stderr)
            raise SystemExit(USAGE)
