"""Access to the package `embedded`, which runs both services in this process, where it is installed."""

from importlib import import_module
from types import ModuleType


def embedded(module: str) -> ModuleType:
    """Imports a module of `embedded`. Raises ImportError with the command that installs it, where it is missing."""
    try:
        return import_module(f"embedded.{module}")
    except ModuleNotFoundError as error:
        needs = f"Engine needs the extra engine: pip install '.[engine]' in a checkout ({error})"
        raise ImportError(needs) from error
