"""Tests on an event loop whose seconds take no time, for what waits on the loop's own clock."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from benchmarks.scale.virtual_time import Clockwork

P = ParamSpec("P")


def in_no_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs a test on such a loop of its own; it takes no fixture that belongs to another loop."""

    @wraps(test)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=Clockwork) as runner:
            runner.run(test(*arguments, **options))

    return run
