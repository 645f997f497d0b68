"""The list of modules in a modules.json, checked entry by entry. It reads no other file."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.repository.files import check_inside
from shared.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module: its class without the package, the package, and its folder inside the repository."""

    kind: str
    origin: str
    folder: str


def listed(file: Path, modules: Any, kinds: Collection[str]) -> Iterator[Module]:
    """Yields the entries of modules.json, of the classes `kinds`, in their order. Raises ModelRefused."""
    if not isinstance(modules, list):
        raise ModelRefused(f"{file} must hold a list of modules")
    if not modules:
        raise ModelRefused(f"{file} holds no module")
    names = set()
    for module in modules:
        try:
            named, folder = module["type"], module["path"]
        except (KeyError, TypeError):
            raise ModelRefused(f"{file}: a module lacks type or path") from None
        entry = module_of(file, named, folder, kinds)
        name = module.get("name")
        if not isinstance(name, str) or not name or "." in name:
            raise ModelRefused(f"{file}: the name of {entry.kind} is {name!r}, it must be a text without a dot")
        if name in names:
            raise ModelRefused(f"{file}: two modules have the name {name!r}, and the first of them would not be run")
        names.add(name)
        yield entry


def module_of(file: Path, named: Any, folder: Any, kinds: Collection[str]) -> Module:
    """Checks a module of the type `named` in `folder`. Raises ModelRefused."""
    if not (isinstance(named, str) and isinstance(folder, str)):
        raise ModelRefused(f"{file}: type {named!r} and path {folder!r} of a module must be texts")
    origin, _, kind = named.rpartition(".")
    if kind not in kinds:
        raise ModelRefused(f"{file}: type {named} is not one of {', '.join(sorted(kinds))}")
    if origin.partition(".")[0] not in ("sentence_transformers", "pylate"):
        raise ModelRefused(f"{file}: type {named} is code of its repository, which is not run")
    check_inside(file, folder)
    return Module(kind=kind, origin=origin, folder=folder)
