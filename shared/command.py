"""What all commands of the services have in common: how they begin, how they name an unknown flag or an address that
cannot be bound.

It needs the standard library only, and knows no command and no server.
"""

import argparse
import difflib
import errno
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

USAGE = 2
"""Exit status of a command whose flags or environment make no sense."""
OURS = frozenset(["demo", "embedded", "frontend_service", "gpu_worker", "harness", "selvage", "shared", "tei"])
"""Packages of this distribution."""


def begin(extra: str) -> None:
    """Prepares a command; `__main__` calls it before its other imports, which take seconds.

    From then on Ctrl-C ends the process at once and without a traceback, until the command handles it itself. A package
    that cannot be imported is told in one line with `extra`, which brings what the command needs. The status is 1 then.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where whoever started us ignores it
        signal.signal(signal.SIGINT, end_at_once)

    def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if not package or package in OURS or package in sys.stdlib_module_names:
            sys.__excepthook__(kind, error, traceback)
            return
        print(f"{error}: the extra {extra} brings it (in a checkout, pip install '.[{extra}]')", file=sys.stderr)

    sys.excepthook = tell


def end_at_once(number: int, frame: FrameType | None) -> None:
    """Ends the process as a signal would; a handler, because process 1 of a container has no default ones."""
    os._exit(128 + number)


class CommandParser(argparse.ArgumentParser):
    """A parser that refuses in one line, with the nearest flag where one is unknown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """See `argparse.ArgumentParser`. Looks for unknown flags first: a missing one may be one that is misspelt."""
        for word in sys.argv[1:] if args is None else args:
            if word == "--" or self._subparsers is not None:  # flags of a subcommand are for its own parser
                break
            flag = word.partition("=")[0]
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                near = difflib.get_close_matches(flag, self._option_string_actions, n=1)
                self.error(f"unrecognized arguments: {flag}{f'; did you mean {near[0]}?' if near else ''}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints one line, because a page of flags would hide it, and ends with status 2."""
        self.exit(USAGE, f"{self.prog}: {message} (--help explains)\n")


ADVICE = {
    errno.EADDRINUSE: "something listens there already, perhaps another worker or frontend (make serve, make demo, "
    "docker compose): `ss -ltnp` tells what. Stop it, or name another port by {flag}",
    errno.EACCES: "ports below 1024 are for root alone: name a higher one by {flag}",
    errno.EADDRNOTAVAIL: "this machine has no such address: name one that it has by {flag}, or 0.0.0.0 for all",
}


def refuse_address(flag: str, listen: str) -> NoReturn:
    """Ends the process with status 2 and a line, because `listen`, the HOST:PORT of a flag, could not be bound."""
    error = _error_of_binding(listen)
    line = f"{flag} = {listen!r}: the address cannot be bound"
    if error:
        advice = ADVICE.get(error.errno or 0, "").format(flag=flag)
        line += f": {error.strerror}{'; ' if advice else ''}{advice}"
    print(line, file=sys.stderr)
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
