"""Calls of the client that are split into requests, without any service."""

from selvage.calls.split_call import Attempt, SplitCall
from selvage.connection import Settings


def begun(call: SplitCall, count: int) -> list[Attempt]:
    """The next requests, of which there are so many at least."""
    attempts = [attempt for _ in range(count) if (attempt := call.next_attempt()) is not None]
    assert len(attempts) == count
    return attempts


class Nobody:
    """As much of a client as its methods need."""

    settings = Settings(target="nowhere:1", in_flight=3)
