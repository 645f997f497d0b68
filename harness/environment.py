"""The environment in which the harness starts processes."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_path(checkout: Path = ROOT) -> str:
    """Builds the PYTHONPATH of started processes: a checkout, then the folders of the caller's PYTHONPATH."""
    folders = (str(checkout), str(checkout / "client"))
    return os.pathsep.join((*folders, *filter(None, [os.environ.get("PYTHONPATH")])))
