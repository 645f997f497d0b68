"""The parser of the command line: errors in one line, with the nearest name where one does not exist. Knows no flag."""

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

OF_SERVICES = ("SELVAGE_FRONTEND_", "SELVAGE_WORKER_")
"""Beginnings of environment variables that are settings of the services."""


LIKE_IT = 0.84
"""Least likeness of a variable that is taken for another one, misspelt."""


class BulkParser(argparse.ArgumentParser):
    """A parser that refuses in one line. `shared.command.CommandParser` is its twin, which this package cannot see."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """See `argparse.ArgumentParser`. Looks for unknown flags first: a missing one may be one that is misspelt."""
        for word in args or ():
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and " " not in flag and flag not in self._option_string_actions:
                self.error(f"unrecognized arguments: {flag}{_meant(flag, self._option_string_actions, 0.6)}")
        return super().parse_known_args(args, namespace)

    def check_variables(self, wanted: str, environment: Iterable[str]) -> None:
        """Ends the process with a line and status 2 where `wanted`, a variable that is not set, may be misspelt."""
        for name in environment:
            near = _meant(name, [wanted], LIKE_IT) if name.startswith("SELVAGE_") else ""
            if near and not name.startswith(OF_SERVICES):
                self.error(f"{name} is not read{near}")

    def error(self, message: str) -> NoReturn:
        """Prints one line, because a page of flags would hide it, and exits with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help explains)\n")


def _meant(name: str, names: Iterable[str], likeness: float) -> str:
    """The end of a message about a name that does not exist: the one that is like it, "" where none is."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=likeness)
    return f"; did you mean {near[0]}?" if near else ""
