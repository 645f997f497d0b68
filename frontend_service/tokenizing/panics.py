"""Panics of the tokenizers library as ordinary errors.

They are no `Exception`: nothing that handles bugs would see them, and they would end the task that they meet.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def panics_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """Raises `error` of the panic's message instead; whatever else is raised passes."""
    try:
        yield
    except BaseException as raised:
        if type(raised).__name__ != "PanicException":  # pyo3 exports no name to catch it by
            raise
        raise error(str(raised)) from None
