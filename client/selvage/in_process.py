"""The services in this process, if they are installed: the distribution `selvage-serving` has them, in `embedded`."""

from importlib import import_module
from types import ModuleType


def embedded(module: str) -> ModuleType:
    """The module `embedded.<module>`. Raises ImportError, which names the extra, where the services are missing."""
    try:
        return import_module(f"embedded.{module}")
    except ModuleNotFoundError as error:
        why = f"Engine needs the extra engine: pip install '.[engine]' in a checkout ({error})"
        raise ImportError(why) from error
