"""Environments of Python that hold what our wheel asks for and nothing else, linked from this one in a second."""

import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.environment import ROOT

SOURCES = ("client", "embedded", "frontend_service", "gpu_worker", "harness", "shared", "pyproject.toml", "README.md")
OURS = "selvage-serving"


def built_wheel(copy: Path, out: Path) -> Path:
    """Of a copy: a build leaves folders behind."""
    for name in SOURCES:
        source = ROOT / name
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out]
    subprocess.run([*command, copy], check=True)
    (built,) = out.glob("*.whl")
    return built


def unpacked(wheel: Path, environment: Path) -> Path:
    """Makes an environment of it alone; where its packages lie."""
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def link(names: Iterable[str], packages: Path) -> None:
    """Has installed distributions in another environment, and no others; with what of them is compiled."""
    for name in names:
        for file in distribution(name).files or ():
            target, source = packages / file, Path(str(distribution(name).locate_file(file)))
            if ".." not in file.parts and source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)


def asked_for(packages: Path, extra: str) -> set[str]:
    """The distributions that our wheel, unpacked there, needs with an extra, and what these need in turn."""
    (ours,) = Distribution.discover(name=OURS, path=[str(packages)])
    seen, left = set[tuple[str, str]](), [(OURS, extra)]
    while left:
        name, asked = left.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        for line in (ours if name == OURS else distribution(name)).requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": asked}):
                left += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in seen} - {OURS}
