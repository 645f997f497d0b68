"""Methods of clients as people see them: with the signature and the docstring of the function they come from."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])


def as_method(run: F, method: Callable[..., Any]) -> F:
    """Returns `run` with the signature and docstring of `method`.

    `method` returns an Operation[R] and `run` its result, so the signature that is shown returns R.
    """
    update_wrapper(run, method)
    signature = inspect.signature(method)
    returned = next(iter(get_args(signature.return_annotation)), Any)
    client, *parameters = signature.parameters.values()
    shown = [client.replace(annotation=inspect.Parameter.empty), *parameters]
    run.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
    return run
