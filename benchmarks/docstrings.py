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


def docstrings(packages: Sequence[str] = PACKAGES) -> Iterator[Docstring]:
    """Yields the docstrings of packages in the order of their files. No summary and no document comes twice.

    Those without a summary are left out, and those that say too little.
    """
    seen = set[str]()
    for root in map(_folder, packages):
        for path in sorted(root.rglob("*.py")):
            for text in _of_file(path) if SKIPPED.isdisjoint(path.relative_to(root).parts) else ():
                summary, _, document = (part.strip() for part in text.strip().partition("\n\n"))  # PEP 257
                says_enough = len(summary.split()) >= WORDS and len(document) >= LETTERS and "\n" not in summary
                if says_enough and seen.isdisjoint({summary, document}):
                    yield Docstring(summary=summary, document=document)
                seen |= {summary, document} if says_enough else set()


def corpus(quick: bool = False) -> list[Docstring]:
    """Reads all docstrings, in an order that mixes the packages. `quick`: the first ones of Python's own library."""
    texts = list(islice(docstrings([PYTHON]), QUICK) if quick else docstrings())
    random.Random(1).shuffle(texts)
    return texts


def _folder(package: str) -> Path:
    """Finds the source files of an installed package."""
    if package == PYTHON:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
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
