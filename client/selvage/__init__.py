"""Selvage from Python: `from selvage import Client, AsyncClient`.

    with Client("127.0.0.1:50051") as client:
        vectors = client.embed(["a quiet harbour", "a loud kitchen"])   # ndarray (2, dimensions), float32
        best = client.rerank("boats", ["a quiet harbour", "a loud kitchen"], top_n=1)[0]

It needs only grpcio, protobuf, googleapis-common-protos and numpy. The public names are imported at their first use,
because services import this package for its generated code alone.

    client                           AsyncClient, Client
    transport                        how both send
    background                       the event loop of clients that block
    connection                       TLS, channel options, headers; what targets look like
    errors, results                  what calls raise and return
    calls                            the methods, and how their calls are split and retried
    messages                         arguments -> requests, replies -> results
    bulk                             `python -m selvage.bulk`: files of texts -> files of vectors
    clusters, ray, daft              batches of Ray and Daft
    v1, worker/v1                    the generated code of the public contract, and of that between services
"""

from importlib import import_module
from types import ModuleType
from typing import Any

_HOMES = {
    "client": ["AsyncClient", "Client"],
    "connection": ["TLS"],
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
    "results": [
        "Classes",
        "Embeddings",
        "LateInteraction",
        "ModelCard",
        "RankedDocument",
        "TextTokens",
        "TokenClasses",
        "TokenMatch",
    ],
}
"""The public names, by the module that defines them."""
_HOMES_BY_NAME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOMES_BY_NAME, "Engine"])


def __getattr__(name: str) -> Any:
    """Imports a public name. Raises AttributeError, and ImportError for Engine where the services are missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Engine":
        return embedded("engine").Engine
    return getattr(import_module(f"{__name__}.{_HOMES_BY_NAME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "v1"]


def embedded(module: str) -> ModuleType:
    """Imports a module of `embedded`. Raises ImportError with the command that installs it, where it is missing."""
    try:
        return import_module(f"embedded.{module}")
    except ModuleNotFoundError as error:
        needs = f"Engine needs the extra engine: pip install '.[engine]' in a checkout ({error})"
        raise ImportError(needs) from error
