"""What our processes are started with."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def python_path() -> str:
    """Our modules first, then what the caller's own names: packages may lie in a folder that was carried along."""
    own = (str(ROOT), str(ROOT / "client"))
    return os.pathsep.join((*own, *filter(None, [os.environ.get("PYTHONPATH")])))
