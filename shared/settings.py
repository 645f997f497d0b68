"""Settings that both processes have, and how settings are read: flags over environment over defaults."""

import sys
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.logs import Format


def address(value: str) -> str:
    """HOST:PORT, or ValueError."""
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 65536):
        raise ValueError("must be HOST:PORT")
    return value


Address = Annotated[str, AfterValidator(address)]


class ServiceSettings(BaseSettings):
    """Every field is a flag (--log-level) and an environment variable (SELVAGE_..._LOG_LEVEL)."""

    model_config = SettingsConfigDict(
        cli_kebab_case=True, cli_implicit_flags=True, cli_hide_none_type=True, extra="forbid"
    )

    log_format: Format = Field("json", description="json: one object a line. console: for a person.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level logged.")
    reflection: bool = Field(True, description="Whether clients may list the services (gRPC reflection).")
    drain_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0, description="After SIGTERM, time for accepted requests to finish, in seconds."
    )

    @classmethod
    def read(cls, arguments: list[str]) -> Self:
        """From the command line and the environment; a bad value ends the process with status 2."""
        try:
            return cls(_cli_parse_args=arguments)  # type: ignore[call-arg]
        except ValidationError as error:
            for problem in error.errors():
                key = ".".join(str(part) for part in problem["loc"]) or "settings"
                flag = key.replace("_", "-")
                print(f"--{flag} = {problem['input']!r}: {problem['msg']}", file=sys.stderr)
            raise SystemExit(2) from None
