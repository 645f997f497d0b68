"""Panics of the tokenizers library, turned into ordinary errors.

A panic is no `Exception`: code that handles errors would not see it, and it would end the task in which it occurs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def panics_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """Raises `error(message)` in place of a panic with that message; other exceptions pass."""
    try:
        yield
    except BaseException as raised:
        if type(raised).__name__ != "PanicException":  # pyo3 exports no name to catch it by
            raise
        raise error(str(raised)) from None
