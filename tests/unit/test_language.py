"""The language of the code: what a program can see of docs/glossary.md and of the rules for names and docstrings.

`python tests/unit/test_language.py [FOLDER ...]` prints what is wrong below some folders, a line each.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "benchmarks",
    "client",
    "demo",
    "distributions",
    "embedded",
    "frontend_service",
    "gpu_worker",
    "harness",
    "shared",
)
PROCESSES = (("frontend_service", "shared"), ("gpu_worker", "shared"), ("client",), ("embedded",), ("benchmarks",))
"""Programs whose classes meet in one process. The client's errors carry the services' names; `embedded` holds both."""
PUBLIC_TWICE = {"Embedder"}
"""Classes that Ray and Daft each know by the same name, in modules that nobody imports together."""
PRONOUNS = {"asked", "each", "found", "given", "kept", "known", "one", "own", "told"}
FRAGMENT = re.compile(
    r"(And|Below|Beside|But|By|Else|Likewise|Of|Or|Than|That|Those|Told|Who|Whom|Whose)\b"
    r"|(How|In which|What|When|Where|Whether|Which)\b(?=(\W+\w+){0,3}\W*$)"
)
"""Beginnings of a docstring that leans on the line above it; of the second kind where less than five words follow."""
LEAST_WORDS = 3


def python_files(*folders: str) -> list[Path]:
    """Python files below the folders, without generated code, and without the copies that pip builds of the client."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    sources = [path for path in paths if "build" not in path.relative_to(ROOT).parts]
    return [path for path in sources if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, which several tests walk."""
    return ast.parse(path.read_text())


def place_of(path: Path, line: int) -> str:
    """A place in the form that editors jump to."""
    return f"{path.relative_to(ROOT)}:{line}"


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of modules, classes, functions, and of names that are assigned."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for before, statement in zip([None, *body], body, strict=False):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            text = statement.value.value
            first = before is None and documented
            if isinstance(text, str) and (first or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield statement.lineno, text


def fragments(path: Path) -> list[str]:
    """Docstrings that do not stand alone."""
    wrong = []
    for line, text in docstrings(parsed(path)):
        sentence = re.split(r"(?<=[.;!?])\s|\n\n", text.strip())[0].replace("\n", " ")
        if FRAGMENT.match(sentence) or (len(sentence.split()) < LEAST_WORDS and not sentence.startswith("See `")):
            wrong.append(f'{place_of(path, line)}: """{sentence}""" does not stand alone')
    return wrong


def assigned_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every variable, parameter, attribute and function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def pronouns(path: Path) -> list[str]:
    """Names that say nothing of what they hold."""
    names = assigned_names(parsed(path))
    return [f"{place_of(path, line)}: {name} is no name" for line, name in names if name.strip("_") in PRONOUNS]


def classes() -> dict[str, list[Path]]:
    """Files by the name of each class that they define."""
    homes: dict[str, list[Path]] = defaultdict(list)
    for path in python_files(*PROGRAMS):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path)
    return homes


def repeated_classes() -> list[str]:
    """Classes that share their name with another class of the same process."""
    wrong = []
    for name, paths in sorted(classes().items()):
        for process in PROCESSES:
            files = [str(path.relative_to(ROOT)) for path in paths if path.relative_to(ROOT).parts[0] in process]
            if len(files) > 1 and name not in PUBLIC_TWICE:
                wrong.append(f"class {name}: {', '.join(files)}")
    return wrong


def terms() -> list[str]:
    """The glossary's own nouns."""
    rows = [
        line.split("|") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if line.startswith("| ")
    ]
    return [row[1].strip() for row in rows[1:]]


def test_docstrings_stand_alone() -> None:
    assert [line for path in python_files(*PROGRAMS) for line in fragments(path)] == []


def test_names_say_what_they_hold() -> None:
    """A loop variable carries its type's name, a result what it is."""
    assert [line for path in python_files(*PROGRAMS) for line in pronouns(path)] == []


def test_no_two_classes_of_a_process_share_a_name() -> None:
    """So that grep and a reader find the one that is meant."""
    assert repeated_classes() == []


def test_the_glossary_has_twenty_nouns_which_the_code_uses() -> None:
    """A word that nobody uses, or that the trade has, explains nothing."""
    code = " ".join(path.read_text().lower() for path in python_files(*PROGRAMS))
    words = re.sub(r"\s+", " ", code)
    assert len(terms()) == len(set(terms())) == 20
    assert [term for term in terms() if term not in words] == []


if __name__ == "__main__":
    places = python_files(*(sys.argv[1:] or PROGRAMS))
    lines = [line for path in places for check in (fragments, pronouns) for line in check(path)]
    print(*lines, *(repeated_classes() if not sys.argv[1:] else []), f"{len(lines)} in all", sep="\n")
