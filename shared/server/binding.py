"""An address that cannot be bound: why, and what to do about it, in one line. Knows no server."""

import errno
import socket
import sys
from typing import NoReturn

from shared.command import USAGE

ADVICE = {
    errno.EADDRINUSE: "something listens there already, perhaps another worker or frontend (make serve, make demo, "
    "docker compose): `ss -ltnp` tells what. Stop it, or name another port by {flag}",
    errno.EACCES: "ports below 1024 are for root alone: name a higher one by {flag}",
    errno.EADDRNOTAVAIL: "this machine has no such address: name one that it has by {flag}, or 0.0.0.0 for all",
}


def refuse_address(flag: str, listen: str) -> NoReturn:
    """Ends the process with status 2 and a line, because `listen`, the HOST:PORT of a flag, could not be bound."""
    error = _error_of_binding(listen)
    why = [f"{flag} = {listen!r}: the address cannot be bound"]
    if error:
        why += [str(error.strerror), ADVICE.get(error.errno or 0, "").format(flag=flag)]
    print(": ".join(filter(None, why)), file=sys.stderr)
    raise SystemExit(USAGE)


def _error_of_binding(listen: str) -> OSError | None:
    """The error that a socket gets at the address, since gRPC tells none; None where it can be bound by now."""
    host, _, port = listen.rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            bound.bind((host.strip("[]"), int(port)))
    except OSError as error:
        return error
    return None
