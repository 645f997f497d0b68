"""Real texts: docstrings of Python's library, NumPy and SciPy, each with the summary that asks for it.

Needs the standard library only: source files are parsed, nothing is imported. The summary is not part of the document.
With it, a document would repeat its query, and every ranking would be easy.
"""

import ast
import importlib.util
import random
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

PYTHON = "python"
"""The name of Python's own library among the packages."""
PACKAGES = (PYTHON, "numpy", "scipy")
SKIPPED = {"test", "tests", "site-packages", "dist-packages"}
"""Folders without documentation, or of other packages."""
LETTERS, WORDS = 100, 3
"""Least letters of a document, and least words of its summary: shorter ones say nothing that could be ranked."""
QUICK = 300
"""Docstrings of a short run."""
OWNERS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """A docstring in two parts: `summary`, its first line, and `document`, what follows after an empty line."""

    summary: str
    document: str

    @classmethod
    def of(cls, text: str) -> "Docstring | None":
        """Splits a docstring; gives None where its first line is no summary, or where too little follows."""
        summary, empty, document = text.strip().partition("\n\n")  # PEP 257
        if not empty or "\n" in summary or len(summary.split()) < WORDS or len(document.strip()) < LETTERS:
            return None
        return cls(summary=summary, document=document.strip())


def docstrings(packages: Sequence[str] = PACKAGES) -> Iterator[Docstring]:
    """Yields the docstrings of packages in the order of their files. No summary and no document comes twice.

    Raises ModuleNotFoundError for a package that is not installed.
    """
    seen = set[str]()
    for package in packages:
        root = _folder(package)
        for path in sorted(root.rglob("*.py")):
            if SKIPPED.isdisjoint(path.relative_to(root).parts):
                for docstring in filter(None, map(Docstring.of, _of_file(path))):
                    if seen.isdisjoint({docstring.summary, docstring.document}):
                        yield docstring
                    seen |= {docstring.summary, docstring.document}


def corpus(quick: bool = False) -> list[Docstring]:
    """Reads all docstrings, in an order that mixes the packages. `quick`: the first ones of Python's own library."""
    texts = list(islice(docstrings([PYTHON]), QUICK) if quick else docstrings())
    random.Random(1).shuffle(texts)
    return texts


def _folder(package: str) -> Path:
    """Finds the source files of a package. Raises ModuleNotFoundError."""
    if package == PYTHON:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package!r} whose docstrings could be read", name=package)
    return Path(spec.origin).parent


def _of_file(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of old escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates, and files that are broken on purpose
        return
    for node in ast.walk(tree):
        if isinstance(node, OWNERS) and (text := ast.get_docstring(node)):
            yield text
