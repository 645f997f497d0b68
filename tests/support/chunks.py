"""Tokenising in chunks, run to its end."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def run_to_end(chunks: Generator[int, None, T]) -> T:
    while True:
        try:
            next(chunks)
        except StopIteration as end:
            result: T = end.value
            return result
