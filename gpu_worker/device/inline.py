"""The caller's own thread as an executor: what is submitted has run when `submit` returns."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    """For tests, `--check` and whoever drives the loop by hand."""

    def submit(self, work: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(work(*arguments, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future
