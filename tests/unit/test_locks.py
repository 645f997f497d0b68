"""The locks of the images agree with pyproject.toml and constraints.txt; `make locks` makes them anew."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.M)


def versions(path: str) -> dict[str, str]:
    """Of a lock, or of constraints."""
    return {str(canonicalize_name(name)): version for name, version in PINNED.findall((ROOT / path).read_text())}


def wanted(extra: str) -> list[Requirement]:
    """What an image's extra asks for, without the project itself."""
    found = [Requirement(line) for line in PROJECT["dependencies"]]
    extras = [extra]
    for name in extras:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][name]):
            if requirement.name == PROJECT["name"]:
                extras.extend(requirement.extras)
            else:
                found.append(requirement)
    return found


@pytest.mark.parametrize("image", ["frontend", "worker"])
def test_a_lock_holds_what_its_image_needs(image: str) -> None:
    """All of the extra in versions that it takes, and what the sources are built with; torch is a step of its own."""
    locked = versions(f"deploy/locks/{image}.txt")
    missing = [
        each for each in wanted(image) if not each.specifier.contains(locked.get(each.name, ""), prereleases=True)
    ]
    assert [each.name for each in missing] == (["torch"] if image == "worker" else [])
    assert "setuptools" in locked


@pytest.mark.parametrize("image", ["frontend", "worker", "minilm"])
def test_a_lock_agrees_with_the_constraints(image: str) -> None:
    locked, tested = versions(f"deploy/locks/{image}.txt"), versions("constraints.txt")
    assert {name: locked[name] for name in locked.keys() & tested.keys()} == {
        name: tested[name] for name in locked.keys() & tested.keys()
    }


@pytest.mark.parametrize("image", ["frontend", "worker", "minilm"])
def test_every_locked_package_has_its_hashes(image: str) -> None:
    text = (ROOT / f"deploy/locks/{image}.txt").read_text()
    for entry in re.split(r"\n(?=[a-z])", text.partition("make locks\n")[2]):
        assert "--hash=sha256:" in entry
    models = {"torch", "transformers", "sentence-transformers"}
    assert image == "worker" or not models & set(versions(f"deploy/locks/{image}.txt"))
