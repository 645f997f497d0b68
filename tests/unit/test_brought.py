"""The modules that extras bring, as `shared.command` knows them without importing anything."""

import ast
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement

from harness.environment import ROOT
from shared.command import BROUGHT, begin
from support.commands import process_as_it_was

OURS = {"demo", "embedded", "frontend_service", "gpu_worker", "harness", "shared"}
IMPORTED_BY = {
    "frontend": ("frontend_service", "shared"),
    "worker": ("gpu_worker", "shared"),
    "demo": ("demo", "harness", "frontend_service", "gpu_worker", "shared"),
}
OPTIONAL = {"opentelemetry", "triton"}
"""The extra trace brings one, and PyTorch for CUDA the other; without them what needs them is off."""
OWN_DISTRIBUTION = {"selvage", "tei"}


def imported(package: str) -> set[str]:
    """Top-level modules that the files of a package import, but those of Python and our own."""
    names = set[str]()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - OURS - set(sys.stdlib_module_names)


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def required(distribution: str, extra: str = "") -> set[str]:
    """Distributions that one needs, with an extra of its own, and what those need."""
    names = set[str]()
    waiting = [(distribution, extra)]
    while waiting:
        distribution, extra = waiting.pop()
        try:
            lines = requires(distribution) or []
        except ModuleNotFoundError:  # for another platform
            continue
        for line in map(Requirement, lines):
            if line.marker is not None and not line.marker.evaluate({"extra": extra}):
                continue
            for inner in line.extras or {""}:
                if (plain(line.name), inner) not in names:
                    names.add((plain(line.name), inner))
                    waiting.append((line.name, inner))
    return {name for name, _ in names}


@pytest.mark.parametrize("extra", IMPORTED_BY)
def test_what_a_command_imports_is_brought_by_its_extra(extra: str) -> None:
    """A new import without an entry would be told with a traceback."""
    modules = set().union(*map(imported, IMPORTED_BY[extra])) - OPTIONAL
    assert modules <= BROUGHT[extra]


@pytest.mark.parametrize("extra", ["frontend", "worker", "demo"])
def test_an_extra_brings_what_is_said_of_it(extra: str) -> None:
    """By what is installed here, and by pyproject.toml's requirements with those of the packages themselves."""
    brought, distributions = required("selvage-serving", extra), packages_distributions()
    for module in BROUGHT[extra] - OWN_DISTRIBUTION:
        assert brought & set(map(plain, distributions[module])), module


@pytest.mark.parametrize(
    ("module", "extra"),
    [("structlog", "worker"), ("torch", "worker"), ("opentelemetry.sdk", "trace"), ("rich", "demo")],
)
def test_a_missing_module_is_told_with_the_extra_that_brings_it(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the command, or another one."""
    with process_as_it_was():
        begin("worker")
        error = ModuleNotFoundError(f"No module named {module!r}", name=module)
        sys.excepthook(ModuleNotFoundError, error, None)
    hint = f"the extra {extra} brings it (in a checkout, pip install '.[{extra}]')"
    assert capsys.readouterr().err == f"No module named {module!r}: {hint}\n"


@pytest.mark.parametrize("module", ["_sqlite3", "gpu_worker.misspelt", None])
def test_a_module_that_no_extra_brings_keeps_its_traceback(
    module: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """No extra would help: a part of Python is missing, or it is a bug of ours."""
    with process_as_it_was():
        begin("worker")
        sys.excepthook(ModuleNotFoundError, ModuleNotFoundError("No module", name=module), None)
    assert capsys.readouterr().err == "ModuleNotFoundError: No module\n"
