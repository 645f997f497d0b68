"""Environments of Python that hold what a wheel of ours requires and nothing else, linked from this one in a second."""

import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.environment import ROOT

SOURCES = ("client", "embedded", "frontend_service", "gpu_worker", "harness", "shared", "pyproject.toml", "README.md")
CLIENT_SOURCES = ("pyproject.toml", "fresh_build.py", "selvage", "tei")
OURS = "selvage-serving"


def built_wheel(copy: Path, out: Path, *, project: Path = ROOT, sources: Sequence[str] = SOURCES) -> Path:
    """Builds the wheel of a project from a copy of its sources, because a build leaves folders behind."""
    for name in sources:
        source = project / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    subprocess.run([*command, copy], check=True)
    (built,) = out.glob("*.whl")
    return built


def unpacked(wheel: Path, environment: Path) -> Path:
    """Makes an environment that holds the wheel alone, and returns the folder of its packages."""
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def link(names: Iterable[str], packages: Path) -> None:
    """Links these installed distributions, and no others, into another environment, compiled files included."""
    for name in names:
        for file in distribution(name).files or ():
            target, source = packages / file, Path(str(distribution(name).locate_file(file)))
            if ".." not in file.parts and source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)


def asked_for(packages: Path, extra: str) -> set[str]:
    """The distributions that our wheel, unpacked in `packages`, requires with an extra, directly or indirectly."""
    (ours,) = Distribution.discover(name=OURS, path=[str(packages)])
    seen, left = set[tuple[str, str]](), [(OURS, extra)]
    while left:
        name, extra_name = left.pop()
        if (name, extra_name) in seen:
            continue
        seen.add((name, extra_name))
        for line in (ours if name == OURS else distribution(name)).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra_name}):
                required = canonicalize_name(requirement.name)
                left += [(required, required_extra) for required_extra in ("", *requirement.extras)]
    return {name for name, _ in seen} - {OURS}
