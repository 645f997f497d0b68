"""Reads a Router of sentence-transformers, which is served only as inference-free SPLADE. It reads JSON only.

A Router stands in modules.json as one module. Its file lists the modules of each route: those of documents are read as
any other list; for queries there must be a SparseStaticEmbedding, the weights that a table, such as one of IDF, has for
a text's tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_worker.repository import text_settings
from gpu_worker.repository.files import read_object
from gpu_worker.repository.module_reading import READERS, Module, module_of
from gpu_worker.repository.recipe import QueriesRecipe
from shared.errors import ModelRefused
from shared.vectors import InputType

KINDS = ("Router", "Asym")
TABLE = "SparseStaticEmbedding"
SIDES = {"query": InputType.QUERY, "document": InputType.DOCUMENT}
"""The routes, by the names of the tasks of sentence-transformers' encode_query and encode_document."""
SERVED = (
    "a Router is served only as inference-free SPLADE, with a SparseStaticEmbedding for queries, and a Transformer "
    "(fill-mask) and a SpladePooling for documents"
)
USUAL = 8192
"""Most tokens of a query where its files set no limit: it costs next to nothing."""


def read(path: Path, modules: Sequence[Module]) -> tuple[QueriesRecipe | None, Sequence[Module]]:
    """Finds how queries are read, and the modules of documents; None and all modules where there is no Router.

    Raises ModelRefused, naming the file.
    """
    router = next((module for module in modules if module.kind in KINDS), None)
    if router is None:
        return None, modules
    if len(modules) > 1:
        raise ModelRefused(f"{path / 'modules.json'}: other modules beside a {router.kind}: {SERVED}")
    file = path / router.folder / "router_config.json"
    described = read_object(file)
    types, structure, parameters = (_object(file, described, key) for key in ("types", "structure", "parameters"))
    if set(structure) != set(SIDES):
        raise ModelRefused(f"{file}: structure has the routes {', '.join(sorted(structure)) or 'none'}: {SERVED}")
    if parameters.get("route_mappings"):
        raise ModelRefused(f"{file}: route_mappings is not supported: {SERVED}")
    query, document = (_route(file, router.folder, types, name, structure[name]) for name in SIDES)
    if [module.kind for module in query] != [TABLE] or document[-1].kind != "SpladePooling":
        kinds = [" and ".join(module.kind for module in route) for route in (query, document)]
        raise ModelRefused(f"{file}: queries go through {kinds[0]}, documents through {kinds[1]}: {SERVED}")
    return _queries(path, query[0].folder, _default(file, structure, parameters)), document


def _object(file: Path, described: dict[str, Any], key: str) -> dict[str, Any]:
    value = described.get(key)
    if not isinstance(value, dict):
        raise ModelRefused(f"{file}: {key} must be an object")
    return value


def _route(file: Path, folder: str, types: dict[str, Any], route: str, names: Any) -> list[Module]:
    if not isinstance(names, list) or not names or any(name not in types for name in names):
        raise ModelRefused(f"{file}: structure: the route {route!r} must be a list of names in types")
    return [module_of(file, types[name], (Path(folder) / name).as_posix(), (*READERS, TABLE)) for name in names]


def _default(file: Path, structure: dict[str, Any], parameters: dict[str, Any]) -> InputType:
    """What texts without a task are: as sentence-transformers has it, a route that is named, else the first one."""
    default = parameters.get("default_route")
    if default is None:
        return SIDES[next(iter(structure))] if parameters.get("allow_empty_key", True) else InputType.UNSPECIFIED
    if default not in SIDES:
        raise ModelRefused(f"{file}: default_route {default!r} is not one of {', '.join(SIDES)}")
    return SIDES[default]


def _queries(path: Path, folder: str, default: InputType) -> QueriesRecipe:
    """Reads a SparseStaticEmbedding, whose weights lie in its folder."""
    file = path / folder / "config.json"
    unknown = sorted(set(read_object(file, missing={})) - {"frozen"})
    if unknown:
        raise ModelRefused(
            f"{file}: {unknown[0]} is not supported: the weights must lie beside it, as save writes them"
        )
    limit = text_settings.of_tokenizer(path / folder).max_tokens
    return QueriesRecipe(folder=folder, max_tokens=limit or USUAL, default=default)
