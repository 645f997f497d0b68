"""Models of random weights for tests: each is written once, for all processes of a run."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

FOLDER = "TEST_MODELS"
"""Where the environment has it, the folder in which all processes of a run find and write them."""


def folder_of_the_run() -> Path:
    """The folder of all models; the process that makes it removes it at its end."""
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="models-")
        atexit.register(_remove, os.environ[FOLDER], os.getpid())
    return Path(os.environ[FOLDER])


def _remove(folder: str, made_by: int) -> None:
    if os.getpid() == made_by:  # not what was forked from it
        shutil.rmtree(folder, ignore_errors=True)


@cache
def random_model(name: str) -> str:
    """The path of a model of the shape `name`; the worker calls it by that name."""
    from harness.random_models.writing import write_named

    place = folder_of_the_run() / name
    if not place.exists():
        new = Path(tempfile.mkdtemp(dir=folder_of_the_run()))
        written = write_named(name, new / name)
        try:
            written.rename(place)
        except OSError:  # another process was faster
            assert place.exists()
        shutil.rmtree(new)
    return str(place)
