"""Programs that a test runs in its own process, as `python -m` does."""

import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def process_as_it_was() -> Iterator[None]:
    """Undoes what commands change for all that their process does later."""
    before, hook = signal.getsignal(signal.SIGINT), sys.excepthook
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.excepthook = hook


def run_as_program(name: str, arguments: Sequence[str]) -> None:
    """Runs a module with arguments. Raises what it raises."""
    with process_as_it_was(), patch.object(sys, "argv", [name, *arguments]):
        runpy.run_module(name, run_name="__main__")
