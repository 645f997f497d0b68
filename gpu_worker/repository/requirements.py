"""Versions of packages that a repository asks for, under `requirements` of its config_sentence_transformers.json.

sentence-transformers 6.2 fails on one that is not met, and passes over one that it cannot read; so do we. What it asks
of sentence-transformers itself is held against the version that files are read as here.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from shared.errors import ModelRefused

READ_AS = "6.2.0"
"""The release of sentence-transformers whose meaning of files is followed."""
OTHER_NAMES = {"pytorch": "torch"}


def check(file: Path, requirements: Any) -> None:
    """`requirements`: specifiers (PEP 440) by package, or objects with a `specifier` and a `reason`.

    Raises ModelRefused, naming the package, the version that is wanted and the one that is here.
    """
    for package, wanted in requirements.items() if isinstance(requirements, dict) else ():
        specifier, reason = wanted, ""
        if isinstance(wanted, dict):
            specifier, reason = wanted.get("specifier", ""), wanted.get("reason", "")
        name = canonicalize_name(OTHER_NAMES.get(str(package), str(package)))
        here = _installed(name)
        if not _met(specifier, here):
            found = f"{here} is what is here" if here else "it is not installed"
            told = f" ({reason})" if reason else ""
            raise ModelRefused(
                f"{file}: requirements: the model wants {name} {specifier}{told}, and {found}: install such a "
                "version, or take a revision of the model that wants this one"
            )


def _met(specifier: Any, here: str | None) -> bool:
    """Whether a version will do, or a specifier cannot be read."""
    try:
        versions = SpecifierSet(specifier, prereleases=True) if isinstance(specifier, str) else None
        return versions is None or (here is not None and here in versions)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _installed(package: str) -> str | None:
    if package == "python":
        return platform.python_version()
    if package == "sentence-transformers":
        return READ_AS
    try:
        return version(package)
    except PackageNotFoundError:
        return None
