"""Settings that both processes have, and how settings are read: flags over environment over defaults."""

import argparse
import inspect
import sys
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, NoDecode, SettingsConfigDict

from shared.command import USAGE, CommandParser


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


OptionalAddress = Annotated[str, AfterValidator(_address_or_none)]


class ServiceSettings(BaseSettings):
    """Every field is a flag (--log-level) and an environment variable (SELVAGE_..._LOG_LEVEL)."""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True, extra="forbid"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level logged; debug: a line for each call as well."
    )
    metrics: OptionalAddress = Field(
        "",
        description="HOST:PORT on which Prometheus reads metrics over HTTP; port 0 takes a free one. Default: none, so "
        "that replicas on one host do not collide.",
    )
    tls_certificate: str = Field(
        "",
        description="File of PEM with the certificate to serve TLS with, and those between it and its root. This file "
        "and the next one are read again when they change. Default: plain text.",
    )
    tls_key: str = Field("", description="File of PEM with its private key, not encrypted.")
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
        return self._needs(("tls_certificate", "tls_key"), ("tls_key", "tls_certificate"))

    def _needs(self, *pairs: tuple[str, str]) -> Self:
        """Raises ValueError where the first of a pair of settings is given without the second."""
        for flag, needed in pairs:
            if getattr(self, flag) and not getattr(self, needed):
                raise ValueError(f"--{flag.replace('_', '-')} needs --{needed.replace('_', '-')}")
        return self

    @classmethod
    def read(cls, arguments: list[str]) -> Self:
        """Reads settings from the command line and the environment.

        A bad value, or a flag that does not exist, ends the process with status 2 and a line that names it.
        """
        flags = CliSettingsSource[Any](cls, root_parser=cls._parser())(args=arguments)
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
            usage="%(prog)s [--FLAG VALUE ...]",
            description=inspect.getdoc(cls),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
