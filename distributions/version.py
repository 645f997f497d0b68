"""`python distributions/version.py 1.2.3`: sets the version wherever it stands, opens its part of the
changelog, commits, and tags. Pushes nothing. It needs git, and nothing but the standard library."""

import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"
"""The form of a version; `b1` and `rc1` follow the three numbers of one that is not final."""
PROJECT = rf'^version = "{VERSION}"$'
REQUIREMENT = rf'"selvage-serving-\w+(?:\[\w+\])?=={VERSION}"'
PLACES = {
    "pyproject.toml": [PROJECT],
    "client/pyproject.toml": [PROJECT],
    "distributions/shared/pyproject.toml": [PROJECT, REQUIREMENT],
    "distributions/frontend/pyproject.toml": [PROJECT, REQUIREMENT],
    "distributions/worker/pyproject.toml": [PROJECT, REQUIREMENT],
    "distributions/demo/pyproject.toml": [PROJECT, REQUIREMENT],
    "shared/__init__.py": [rf'^__version__ = "{VERSION}"$'],
    "deploy/frontend.Dockerfile": [rf"^ARG VERSION={VERSION}$"],
    "deploy/worker.Dockerfile": [rf"^ARG VERSION={VERSION}$"],
    "deploy/proxy/Dockerfile": [rf"^ARG VERSION={VERSION}$"],
    "deploy/kubernetes/frontend.yaml": [rf"image: selvage-frontend:{VERSION}$"],
    "deploy/kubernetes/worker.yaml": [rf"image: selvage-worker:{VERSION}$"],
    "deploy/kubernetes/kustomization.yaml": [rf"newTag: {VERSION}\}}"],
}
"""Every file that has the version, with the expressions that find it there."""
UNRELEASED = "## Unreleased\n"


class VersionRefused(Exception):
    """The version cannot be set; the message says why."""


def versions(root: Path) -> dict[str, set[str]]:
    """Reads the versions in each of the places; each should have one. Raises VersionRefused where one has none."""
    read: dict[str, set[str]] = {}
    for place, expressions in PLACES.items():
        text = (root / place).read_text()
        for expression in expressions:
            if not re.search(expression, text, re.M):
                raise VersionRefused(f"{place}: nothing matches {expression}")
        read[place] = {match[1] for expression in expressions for match in re.finditer(expression, text, re.M)}
    return read


def write(root: Path, version: str, date: datetime.date) -> None:
    """Writes a version into all places, and its heading into the changelog. Raises VersionRefused, and writes nothing
    then."""
    versions(root)
    changelog = root / "CHANGELOG.md"
    if UNRELEASED not in changelog.read_text():
        raise VersionRefused(f"CHANGELOG.md: there is no heading {UNRELEASED.strip()!r}")
    for place, expressions in PLACES.items():
        text = (root / place).read_text()
        for expression in expressions:
            text = re.sub(expression, lambda match: match[0].replace(match[1], version), text, flags=re.M)
        (root / place).write_text(text)
    changelog.write_text(changelog.read_text().replace(UNRELEASED, f"{UNRELEASED}\n## {version}, {date}\n", 1))


def release(root: Path, version: str) -> None:
    """Sets a version, commits all places, and tags the commit. Raises VersionRefused before anything is changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout

    if not re.fullmatch(VERSION, version):
        raise VersionRefused(f"V={version}: a version has the form 1.2.3, 1.2.3b1 or 1.2.3rc1")
    if git("tag", "--list", f"v{version}"):
        raise VersionRefused(f"V={version}: there is a tag v{version} already")
    if git("status", "--porcelain"):
        raise VersionRefused("there are changes that are not committed, which the release would not have")
    write(root, version, datetime.date.today())
    git("commit", "--all", "--message", f"Version {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"Version {version}")


def main(arguments: Sequence[str]) -> int:
    """Runs the command, and returns its exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        release(ROOT, arguments[0])
    except VersionRefused as refused:
        print(refused, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(failed.stderr.strip(), file=sys.stderr)
        return 1
    print(f"Committed and tagged v{arguments[0]}; `make dist` builds it, `git push --follow-tags` publishes the tag.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
