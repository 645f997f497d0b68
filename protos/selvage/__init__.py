"""Selvage from Python: `from selvage import Client, AsyncClient`.

    with Client("127.0.0.1:50051") as client:
        vectors = client.embed(["a quiet harbour", "a loud kitchen"])   # ndarray (2, dimensions), float32
        best = client.rerank("boats", ["a quiet harbour", "a loud kitchen"], top_n=1)[0]

grpcio, protobuf, googleapis-common-protos and numpy are all that it needs. `selvage.v1` holds the generated code of the
public contract. What stands here is imported when it is first asked for, since servers want that code alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selvage.async_client import AsyncClient as AsyncClient
    from selvage.client import Client as Client
    from selvage.connection import TLS as TLS
    from selvage.engine.engine import Engine as Engine
    from selvage.errors import Cancelled as Cancelled
    from selvage.errors import DeadlineExceeded as DeadlineExceeded
    from selvage.errors import Denied as Denied
    from selvage.errors import DimensionMismatch as DimensionMismatch
    from selvage.errors import InputTooLarge as InputTooLarge
    from selvage.errors import InputTooLong as InputTooLong
    from selvage.errors import Internal as Internal
    from selvage.errors import InvalidInput as InvalidInput
    from selvage.errors import LimitExceeded as LimitExceeded
    from selvage.errors import Overloaded as Overloaded
    from selvage.errors import ResultTooLarge as ResultTooLarge
    from selvage.errors import SelvageError as SelvageError
    from selvage.errors import Unavailable as Unavailable
    from selvage.errors import UnknownModel as UnknownModel
    from selvage.errors import UnsupportedDimensions as UnsupportedDimensions
    from selvage.errors import UnsupportedTask as UnsupportedTask
    from selvage.model_card import LateInteraction as LateInteraction
    from selvage.model_card import ModelCard as ModelCard
    from selvage.results import Classes as Classes
    from selvage.results import Embeddings as Embeddings
    from selvage.results import RankedDocument as RankedDocument
    from selvage.results import TextTokens as TextTokens
    from selvage.results import TokenClasses as TokenClasses
    from selvage.results import TokenMatch as TokenMatch

_HOMES = {
    "client": ["Client"],
    "async_client": ["AsyncClient"],
    "connection": ["TLS"],
    "engine.engine": ["Engine"],
    "errors": [
        "Cancelled",
        "DeadlineExceeded",
        "Denied",
        "DimensionMismatch",
        "InputTooLarge",
        "InputTooLong",
        "Internal",
        "InvalidInput",
        "LimitExceeded",
        "Overloaded",
        "ResultTooLarge",
        "SelvageError",
        "Unavailable",
        "UnknownModel",
        "UnsupportedDimensions",
        "UnsupportedTask",
    ],
    "model_card": ["LateInteraction", "ModelCard"],
    "results": ["Classes", "Embeddings", "RankedDocument", "TextTokens", "TokenClasses", "TokenMatch"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if name != "Engine":
            raise
        why = f"Engine needs the extra engine: pip install '.[engine]' in a checkout ({error})"
        raise ImportError(why) from error


def __dir__() -> list[str]:
    return [*__all__, "v1"]
