"""The caller's thread as an executor: a call that is submitted has run when `submit` returns."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    """An executor without a thread, for tests, `--check`, and code that drives the scheduler by itself."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> "Future[T]":
        """Runs the call; its error is the future's."""
        future: Future[T] = Future()
        try:
            future.set_result(work(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future
