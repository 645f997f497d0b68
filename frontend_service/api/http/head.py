"""Checks of a request's head, which come before all others, and of the host that it is for.

Specification: RFC 9112, 3.2, 6.1; RFC 9110, 7.2, 10.1.1, 15.5.20.
"""

import re
from dataclasses import dataclass

from frontend_service.api.http.arrival import Headers
from frontend_service.api.http.errors import HttpError
from shared.caller import AUTHORIZATION, repeated
from shared.errors import clip
from shared.security import is_loopback

HOST, TIMEOUT = "host", "selvage-timeout"
ONCE = (HOST, AUTHORIZATION, "content-type", TIMEOUT)
"""Headers that may come once: twice, they could contradict each other."""
AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(:[0-9]*)?")
ANY = "*"


def check(method: str, version: str, headers: Headers) -> None:
    """Raises HttpError for a head that is wrong on every path. `version`: that of HTTP."""
    if version not in ("1.0", "1.1"):
        raise HttpError(505, f"this port speaks HTTP/1.1, not {version}")
    if method == "CONNECT":
        raise HttpError(405, "this is no proxy", (("allow", "GET, HEAD, POST"),))
    names = [name for name, _ in headers]
    for name in ONCE:
        if names.count(name) > 1:
            raise HttpError(400, repeated(name, names.count(name)))
    if version == "1.1" and HOST not in names:
        raise HttpError(400, f"{HOST} is missing, which HTTP/1.1 needs")
    for name, value in headers:
        if name == HOST and AUTHORITY.fullmatch(value) is None:
            raise HttpError(400, f"{HOST} is {clip(value)}, it must be HOST or HOST:PORT")
        if name == "transfer-encoding":
            _check_coding(version, value)
        if name == "expect" and value.lower() != "100-continue":
            raise HttpError(417, f"expect is {clip(value)}, it may be 100-continue")
    if names.count("transfer-encoding") > 1:
        raise HttpError(501, "transfer-encoding may be chunked, and nothing beside it")


def _check_coding(version: str, value: str) -> None:
    if version == "1.0":
        raise HttpError(400, "transfer-encoding is nothing that HTTP/1.0 has")
    if value.lower() != "chunked":
        raise HttpError(501, f"transfer-encoding is {clip(value)}, it may be chunked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The hosts that requests may be for: on a loopback address those of loopback, elsewhere all.

    A web page can point a name of its own at the address of this machine; for a browser it is the same site then, and
    only the host's name shows the difference. `loopback`: whether hosts must be those of loopback.
    """

    loopback: bool = False

    @classmethod
    def of(cls, listen: str) -> "Hosts":
        """The hosts of a port on HOST:PORT."""
        return cls(loopback=is_loopback(listen))

    def check(self, headers: Headers) -> None:
        """Raises HttpError for a host that is not served. A request without a host comes from no browser."""
        if not self.loopback:
            return
        for name in (_host_name(value) for header, value in headers if header == HOST):
            if name and not is_loopback(f"{name}:0"):
                raise HttpError(
                    421, f"{HOST} is {clip(name)}, and this port answers for this machine alone: localhost, 127.0.0.1"
                )


def _host_name(authority: str) -> str:
    """The name of HOST or HOST:PORT, in lower case."""
    match = AUTHORITY.fullmatch(authority)
    return match[1].lower().removesuffix(".") if match else authority
