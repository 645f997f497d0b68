"""The name that pip knows this project by. On PyPI `selvage` is another project."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
PROGRAMS = (
    "protos",
    "client",
    "embedded",
    "shared",
    "frontend_service",
    "gpu_worker",
    "harness",
    "demo",
    "distributions",
    "benchmarks",
    "deploy",
)
FOREIGN = re.compile(r"pip3? install [^\n`]*?(?<![\w./-])selvage(?![\w./-])|(?<![\w.-])selvage\[(?!\.\])")
"""A command that fetches it, or one of its extras; a regular expression of Prometheus has `selvage[.]`."""


def texts() -> list[Path]:
    """Every page, program, image and setting of the project."""
    pages = [ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "docs").glob("*.md")]
    kinds = (".py", ".md", ".yaml", ".Dockerfile", ".txt", ".html", ".js")
    return pages + [file for name in PROGRAMS for file in (ROOT / name).rglob("*") if file.name.endswith(kinds)]


def test_nothing_recommends_the_foreign_package() -> None:
    """Whoever follows a message of ours gets this project, not a stranger's code."""
    assert (PROJECT["name"], CLIENT["name"]) == ("selvage-serving", "selvage-serving-client")
    assert [str(file.relative_to(ROOT)) for file in texts() if FOREIGN.search(file.read_text())] == []


def test_both_distributions_require_the_same_of_the_client() -> None:
    """The package `selvage` is in both, so its requirements, its extras and its version are."""
    assert CLIENT["version"] == PROJECT["version"]
    assert CLIENT["requires-python"] == PROJECT["requires-python"]
    assert CLIENT["dependencies"] == PROJECT["dependencies"]
    for extra, requirements in CLIENT["optional-dependencies"].items():
        of_the_whole = [
            line.replace(PROJECT["name"], CLIENT["name"]) for line in PROJECT["optional-dependencies"][extra]
        ]
        assert requirements == of_the_whole
