"""The Python that a peer has of its own (`make peers`)."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """Named as its list of packages is."""

    name: str

    @property
    def programs(self) -> Path:
        """Where python is, and what was installed beside it."""
        return FOLDER / self.name / "bin"

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.programs / "python"

    def versions(self, names: Sequence[str]) -> dict[str, str]:
        """Of those packages that it has, read from outside."""
        places = [str(each) for each in (FOLDER / self.name).glob("lib/python*/site-packages")]
        installed = importlib.metadata.distributions(path=places)
        found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in installed}
        return {name: found[name] for name in names if name in found}
