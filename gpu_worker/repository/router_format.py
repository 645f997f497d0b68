"""Reads a Router of sentence-transformers (its older name is Asym): modules for queries and modules for documents.

A Router stands in modules.json as one module. Each of its routes, put in its place, makes a list of modules that is
read as any other. It reads JSON only.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import read_object
from gpu_worker.repository.module_reading import READERS, Module, module_of
from gpu_worker.repository.recipe import LayerRecipe, Recipe
from shared.errors import ModelRefused
from shared.vectors import InputType

KINDS = ("Router", "Asym")
FILES = ("router_config.json", "config.json")
"""Files that describe a Router, the older one last; the first one that is there counts."""
MODALITY = "text"
SIDES = {InputType.QUERY: "query", InputType.DOCUMENT: "document"}
"""The tasks of sentence-transformers' encode_query and encode_document."""
Modules = Sequence[Module]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The modules of queries and of documents. `default`: what texts are that are neither, see `Recipe`."""

    query: Modules
    document: Modules
    default: InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class _RouterFile:
    """A Router's file: for each route its modules; `mappings` are routes by (task, modality)."""

    file: Path
    routes: dict[str, list[Module]]
    default: str | None
    mappings: dict[Any, str] = field(default_factory=dict)

    def route_of(self, task: str | None) -> str | None:
        """The route of texts with a task, as sentence-transformers' Router finds it; None where there is none."""
        for key in ((task, MODALITY), (task, None), (None, MODALITY), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
        for route in (task, MODALITY):
            if route in self.routes:
                return route
        return None if task else self.default


def routes(path: Path, modules: Modules) -> Routes | None:
    """Finds the modules of each side; None where there is no Router. Raises ModelRefused, naming file and key."""
    places = [place for place, module in enumerate(modules) if module.kind in KINDS]
    if not places:
        return None
    if len(places) > 1:
        raise ModelRefused(f"{path / 'modules.json'}: there are {len(places)} Routers, one is supported")
    before, router, after = modules[: places[0]], modules[places[0]], modules[places[0] + 1 :]
    described = _read(path, router.folder)
    names = {side: described.route_of(task) for side, task in SIDES.items()}
    for side, name in names.items():
        if name is None:
            have = ", ".join(sorted(described.routes))
            raise ModelRefused(f"{described.file}: there is no route for the task {SIDES[side]!r}, only {have}")
    lists = {side: [*before, *described.routes[name or ""], *after] for side, name in names.items()}
    query, document = lists[InputType.QUERY], lists[InputType.DOCUMENT]
    return Routes(query=query, document=document, default=_default(described, names))


def _default(described: _RouterFile, names: dict[InputType, str | None]) -> InputType:
    """The side whose route texts without a task go. DOCUMENT where both go the same one."""
    default = described.route_of(None)
    if default is None:
        return InputType.UNSPECIFIED
    for side in (InputType.DOCUMENT, InputType.QUERY):
        if names[side] == default:
            return side
    raise ModelRefused(
        f"{described.file}: texts without a task go the route {default!r}, of neither queries nor documents"
    )


def _read(path: Path, folder: str) -> _RouterFile:
    file = next((path / folder / name for name in FILES if (path / folder / name).is_file()), path / folder / FILES[0])
    said = read_object(file)
    types, structure, parameters = (_object(file, said, key) for key in ("types", "structure", "parameters"))
    modules = {name: module_of(file, named, (Path(folder) / name).as_posix(), READERS) for name, named in types.items()}
    routes: dict[str, list[Module]] = {}
    for route, names in structure.items():
        if not isinstance(names, list) or not names or any(name not in modules for name in names):
            raise ModelRefused(f"{file}: structure: the route {route!r} must be a list of names in types")
        routes[route] = [modules[name] for name in names]
    if not routes:
        raise ModelRefused(f"{file}: structure has no route")
    default, mappings = parameters.get("default_route"), _mappings(file, parameters.get("route_mappings") or {})
    for named in (*mappings.values(), *([] if default is None else [default])):
        if named not in routes:
            raise ModelRefused(f"{file}: the route {named!r} is not one of {', '.join(sorted(routes))}")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(routes))
    return _RouterFile(file=file, routes=routes, default=default, mappings=mappings)


def _object(file: Path, said: dict[str, Any], key: str) -> dict[str, Any]:
    value = said.get(key)
    if not isinstance(value, dict):
        raise ModelRefused(f"{file}: {key} must be an object")
    return value


def _mappings(file: Path, said: dict[str, Any]) -> dict[Any, str]:
    """Routes by (task, modality), which the file writes as texts, such as "('query', None)". They are parsed as plain
    values; one that is none is left out, as in sentence-transformers."""
    mappings = {}
    for key, route in said.items():
        try:
            mappings[ast.literal_eval(key)] = route
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    if not all(isinstance(route, str) for route in mappings.values()):
        raise ModelRefused(f"{file}: route_mappings must name routes")
    return mappings


def join(path: Path, query: Recipe, document: Recipe, default: InputType) -> Recipe:
    """Makes one recipe of those of both sides. Raises ModelRefused for models whose sides are not served."""
    for recipe in (query, document):
        if recipe.classifier is not None or recipe.late_interaction is not None:
            what = "scores" if recipe.classifier else "late interaction"
            raise ModelRefused(f"{path / 'modules.json'}: a Router of a model of {what} is not supported")
    if query == document:
        return document
    if bool(query.dense) != bool(document.dense):
        raise ModelRefused(f"{path / 'modules.json'}: queries and documents get vectors of different kinds")
    query, document = (replace(recipe, multi_vector=None) for recipe in (query, document))
    if query.dense and document.dense and query.dense.normalize != document.dense.normalize:
        query, document = _with_own_unit(query), _with_own_unit(document)
    return replace(document, query=query, default_route=default)


def _with_own_unit(recipe: Recipe) -> Recipe:
    """The recipe with a last Normalize as a layer, since a request's `normalize` is for both sides."""
    dense = recipe.dense
    if dense is None or not dense.normalize:
        return recipe
    return replace(recipe, dense=replace(dense, layers=(*dense.layers, LayerRecipe(kind="unit")), normalize=False))
