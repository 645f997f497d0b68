"""What `make dist` builds: five wheels that share out the packages among them, and the version of all."""

import ast
import datetime
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from distributions.version import PLACES, VersionRefused, release, versions, write

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"client": ROOT / "client"} | {
    name: ROOT / "distributions" / name for name in ("shared", "frontend", "worker", "demo")
}
PACKAGES = {
    "client": ("selvage",),
    "shared": ("shared", "tei"),
    "frontend": ("frontend_service",),
    "worker": ("gpu_worker", "embedded"),
    "demo": ("demo", "harness"),
}
REQUIRED = {
    "client": [],
    "shared": ["client"],
    "frontend": ["shared"],
    "worker": ["shared"],
    "demo": ["frontend", "worker"],
}
"""Which of the others each one requires."""
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROJECTS: dict[str, dict[str, Any]] = {
    name: tomllib.loads((folder / "pyproject.toml").read_text()) for name, folder in FOLDERS.items()
}
TORCH = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]  # type: ignore[index]
EXTRAS = {"shared": "server", "frontend": "frontend", "worker": "worker", "demo": "demo"}
"""The extra of the whole that asks for the same as each distribution."""


def requirements(lines: list[str]) -> set[str]:
    """What of other projects is asked for."""
    return {str(Requirement(line)) for line in lines if not line.startswith("selvage-serving")}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All of them, built from a copy with kernels that are none."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "built")
    for name in ("client", "distributions", *(name for names in PACKAGES.values() for name in names)):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    kernels = copy / "gpu_worker/kernels/cpu/built"
    kernels.mkdir()
    for torch in (f"{TORCH}+cpu", f"{TORCH}+cu130", "2.0.1+cpu"):
        (kernels / f"avx2-0123456789ab-torch{torch}.so").touch()
    built = {}
    for name, folder in FOLDERS.items():
        out = copy / "dist" / name
        command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "bdist_wheel", "-d", out]
        subprocess.run(command, cwd=copy / folder.relative_to(ROOT), check=True, capture_output=True)
        [built[name]] = out.glob("*.whl")
    return built


def files_of(wheel: Path) -> set[str]:
    """Names of a wheel's files, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def parent(package: str) -> Path:
    """The folder that a package lies in."""
    return ROOT / "client" if package in ("selvage", "tei") else ROOT


def sources(package: str) -> set[str]:
    """Names of a package's files, as git would have them."""
    files = [file for file in (parent(package) / package).rglob("*") if file.is_file()]
    return {str(file.relative_to(parent(package))) for file in files if not {"__pycache__", "built"} & set(file.parts)}


def test_each_package_is_in_one_wheel_and_whole(wheels: dict[str, Path]) -> None:
    """Pages, icons, sources of kernels and stubs too; no two distributions write one file."""
    for name, wheel in wheels.items():
        files = {file for file in files_of(wheel) if not file.endswith(".so")}
        assert files == {file for package in PACKAGES[name] for file in sources(package)}


def imported(file: Path) -> set[str]:
    """Top packages of all imports of a file, also of those inside of functions."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("name", [*PACKAGES, "embedded"])
def test_a_distribution_imports_no_package_that_it_does_not_bring(name: str) -> None:
    """Itself or by what it requires. `embedded` comes with the worker, whose extra `engine` brings the frontend."""
    brought, left = set[str](), ["frontend", "worker"] if name == "embedded" else [name]
    while left:
        other = left.pop()
        brought |= set(PACKAGES[other])
        left += REQUIRED[other]
    packages = {"embedded"} if name == "embedded" else set(PACKAGES[name]) - {"embedded"}
    files = [path for package in packages for path in parent(package).joinpath(package).rglob("*.py")]
    ours = {package for names in PACKAGES.values() for package in names}
    assert {package for path in files for package in imported(path) & ours} <= brought


def test_the_worker_brings_the_kernels_of_its_pytorch(wheels: dict[str, Path]) -> None:
    """And no others that lie beside them. It asks for the one version that they are for."""
    kernels = [Path(file).name for file in files_of(wheels["worker"]) if file.endswith(".so")]
    assert kernels == [f"avx2-0123456789ab-torch{TORCH}+cpu.so"]
    assert f"torch=={TORCH}" in requirements(PROJECTS["worker"]["project"]["dependencies"])


def test_metadata_asks_for_the_others_in_its_own_version(wheels: dict[str, Path]) -> None:
    """So that a frontend of one version never meets the shared code of another."""
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            [path] = [path for path in archive.namelist() if path.endswith(".dist-info/METADATA")]
            metadata = message_from_bytes(archive.read(path))
        assert (metadata["Name"], metadata["Version"]) == (f"selvage-serving-{name}", WHOLE["version"])
        assert metadata["Summary"]
        assert metadata["Description-Content-Type"] == "text/markdown"
        lines = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
        ours = {str(line) for line in lines if line.name.startswith("selvage-serving") and line.marker is None}
        assert ours == {f"selvage-serving-{other}=={WHOLE['version']}" for other in REQUIRED[name]}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_distribution_asks_for_what_its_extra_of_the_whole_does(name: str) -> None:
    """But torch: the checkout builds kernels for whichever there is."""
    asked = requirements(PROJECTS[name]["project"]["dependencies"])
    of_the_whole = requirements(WHOLE["optional-dependencies"][EXTRAS[name]])
    differing = {"torch"} if name == "worker" else set()
    assert {Requirement(line).name for line in asked ^ of_the_whole} == differing
    assert PROJECTS[name]["project"]["requires-python"] == WHOLE["requires-python"]


def test_spans_ask_for_what_they_do_in_the_whole() -> None:
    shared = PROJECTS["shared"]["project"]["optional-dependencies"]["trace"]
    assert shared == WHOLE["optional-dependencies"]["trace"]


def test_nothing_is_published_by_accident() -> None:
    """Indexes refuse a project with this classifier; no licence is chosen yet."""
    for project in (WHOLE, *(project["project"] for project in PROJECTS.values())):
        assert "Private :: Do Not Upload" in project["classifiers"]


def test_one_version_stands_everywhere() -> None:
    assert versions(ROOT) == {place: {WHOLE["version"]} for place in PLACES}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with the files that have the version, and the changelog, in its first commit."""
    for place in (*PLACES, "CHANGELOG.md"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    for arguments in (
        ("init", "--quiet"),
        ("config", "user.name", "A"),
        ("config", "user.email", "a@example.org"),
        ("add", "."),
        ("commit", "--quiet", "--message", "All"),
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def git(checkout: Path, *arguments: str) -> str:
    """The output of git, stripped."""
    return subprocess.run(["git", *arguments], cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()


def test_a_release_is_one_commit_and_its_tag(checkout: Path) -> None:
    release(checkout, "12.0.3rc1")
    assert versions(checkout) == {place: {"12.0.3rc1"} for place in PLACES}
    assert git(checkout, "describe", "--exact-match") == "v12.0.3rc1"
    assert git(checkout, "status", "--porcelain") == ""
    changed = set(git(checkout, "diff", "--name-only", "HEAD~").splitlines())
    assert changed == {*PLACES, "CHANGELOG.md"}
    diff = git(checkout, "diff", "--unified=0", "HEAD~")
    assert all("12.0.3rc1" in line for line in re.findall(r"^\+(?!\+\+)(.+)$", diff, re.M))


def test_a_release_that_cannot_be_changes_nothing(checkout: Path) -> None:
    """A version that is none or is tagged, changes that are not committed, a place without the version."""
    before = git(checkout, "rev-parse", "HEAD")
    with pytest.raises(VersionRefused, match=r"^V=1\.2: a version has the form"):
        release(checkout, "1.2")
    git(checkout, "tag", "v1.2.3")
    with pytest.raises(VersionRefused, match=r"^V=1\.2\.3: there is a tag"):
        release(checkout, "1.2.3")
    (checkout / "shared/__init__.py").write_text("")
    with pytest.raises(VersionRefused, match="not committed"):
        release(checkout, "1.2.4")
    with pytest.raises(VersionRefused, match=r"^shared/__init__\.py: nothing matches"):
        write(checkout, "1.2.4", datetime.date(2030, 1, 1))
    git(checkout, "checkout", "--", ".")
    (checkout / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(VersionRefused, match=r"^CHANGELOG\.md"):
        write(checkout, "1.2.4", datetime.date(2030, 1, 1))
    git(checkout, "checkout", "--", ".")
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", "HEAD") == before
