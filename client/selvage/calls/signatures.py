"""Methods of clients as people see them: with the signature and the docstring of the function they come from."""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar, get_args, get_type_hints

from selvage.messages.options import DEFAULTS

F = TypeVar("F", bound=Callable[..., Any])


def as_method(run: F, method: Callable[..., Any]) -> F:
    """Returns `run` with the signature and docstring of `method`.

    `method` returns an Operation[R] and `run` its result, so the signature that is shown returns R and has all options.
    """
    update_wrapper(run, method)
    signature = inspect.signature(method)
    returned = next(iter(get_args(signature.return_annotation)), Any)
    client, *parameters = signature.parameters.values()
    shown = [client.replace(annotation=inspect.Parameter.empty)]
    for parameter in parameters:
        shown += [parameter] if parameter.kind is not parameter.VAR_KEYWORD else _options(parameter.annotation)
    run.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
    return run


def _options(unpacked: Any) -> list[inspect.Parameter]:
    """A parameter for each option of an `Unpack[TypedDict]`."""
    hints = get_type_hints(get_args(unpacked)[0])
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=hint)
        for name, hint in hints.items()
    ]
