"""Records which modules a run calls, with what, and what each returns; such a call can be made again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleCall:
    """A recorded call of a module: what it was given, and what it returned."""

    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    output: Any

    @property
    def states(self) -> Tensor | None:
        """The hidden states [1, T, H] that a layer was called with; None for a call without."""
        states = self.arguments[0] if self.arguments else self.keywords.get("hidden_states")
        return states if isinstance(states, Tensor) else None


def record_calls(model: nn.Module, run: Callable[[], object]) -> list[ModuleCall]:
    """The calls of a model and of all its modules while `run` runs, in the order in which they ended."""
    calls: list[ModuleCall] = []

    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
        calls.append(ModuleCall(module=module, arguments=arguments, keywords=keywords, output=output))

    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        with torch.inference_mode():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


@dataclass(frozen=True, slots=True)
class _Named:
    """An argument that differs from run to run: a tensor, by its name."""

    name: str


class RepeatedCall:
    """A recorded call, made again in other runs with their tensors."""

    def __init__(self, call: ModuleCall, tensors: Mapping[str, Tensor]) -> None:
        """`tensors`: those of the recorded run that other runs have too, by their names.

        Raises ValueError where the call was given anything else that may differ from run to run.
        """
        self._module = call.module
        self._arguments = [_argument(value, tensors) for value in call.arguments]
        self._keywords = {name: _argument(value, tensors) for name, value in call.keywords.items()}

    def make(self, tensors: Mapping[str, Tensor]) -> Any:
        """Makes the call with the tensors of this run, by their names."""
        arguments = [tensors[value.name] if isinstance(value, _Named) else value for value in self._arguments]
        keywords = {
            name: tensors[value.name] if isinstance(value, _Named) else value for name, value in self._keywords.items()
        }
        return self._module(*arguments, **keywords)


def _argument(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """An argument of a repeated call. Raises ValueError for one that may be another one in another run."""
    for name, tensor in tensors.items():
        if value is tensor:
            return _Named(name)
    if value is None or isinstance(value, bool | float | str) or (isinstance(value, int) and value == 0):
        return value  # any other whole number may count the tokens of the recorded run
    raise ValueError(f"a {type(value).__name__} is no argument that a call can be repeated with")


def maker_of(value: Any, calls: Sequence[ModuleCall]) -> ModuleCall | None:
    """The last of the calls that returned this very object: the outermost, where modules hand on what others made."""
    return next((call for call in reversed(calls) if call.output is value), None)
