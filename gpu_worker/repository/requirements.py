"""Checks of the package versions that a repository requires (config_sentence_transformers.json, `requirements`).

sentence-transformers 6.2 fails on a requirement that is not met, and ignores one that it cannot parse; so do we. A
requirement on sentence-transformers itself is compared with the version whose meaning of files we follow.
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
    """Checks requirements: specifiers (PEP 440) by package, or objects with a `specifier` and a `reason`.

    Raises ModelRefused for the first one that is not met, naming the package, the version that is wanted and the
    installed one.
    """
    for package, wanted in requirements.items() if isinstance(requirements, dict) else ():
        specifier, reason = wanted, ""
        if isinstance(wanted, dict):
            specifier, reason = wanted.get("specifier", ""), wanted.get("reason", "")
        name = canonicalize_name(OTHER_NAMES.get(str(package), str(package)))
        here = _installed(name)
        if not _met(specifier, here):
            present = f"{here} is what is here" if here else "it is not installed"
            because = f" ({reason})" if reason else ""
            raise ModelRefused(
                f"{file}: requirements: the model wants {name} {specifier}{because}, and {present}: install such a "
                "version, or take a revision of the model that wants this one"
            )


def _met(specifier: Any, here: str | None) -> bool:
    """Whether a version meets a specifier, or the specifier cannot be parsed."""
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
