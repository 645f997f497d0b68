"""The environment in which the harness starts processes."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_path() -> str:
    """The PYTHONPATH of started processes: this checkout, then the folders of the caller's PYTHONPATH."""
    checkout = (str(ROOT), str(ROOT / "client"))
    return os.pathsep.join((*checkout, *filter(None, [os.environ.get("PYTHONPATH")])))
