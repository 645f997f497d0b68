"""A repository may ask for versions of packages: one that is not met is refused, as the reference refuses it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from gpu_worker.model.loading import load
from shared.errors import ModelRefused
from support.tiny import CPU, write_pooled

FILE = "config_sentence_transformers.json"
UNMET: dict[str, tuple[Any, str]] = {
    "a later transformers": (
        {"transformers": ">=99"},
        r"the model wants transformers >=99, and \d+\.[\d.]+ is what is",
    ),
    "an earlier torch by its other name": ({"pytorch": "<1"}, "the model wants torch <1, and"),
    "a package that is not here": ({"no_such-package": ""}, "wants no-such-package , and it is not installed"),
    "a reason": ({"python": {"specifier": "<3", "reason": "print is a word"}}, r"python <3 \(print is a word\), and 3"),
    "a later reference": ({"sentence-transformers": ">=7"}, r"sentence-transformers >=7, and 6\.2\.0 is what is here"),
}
MET: dict[str, Any] = {
    "versions that are here": {
        "transformers": ">=5",
        "torch": ">=2",
        "python": ">=3.11",
        "sentence-transformers": ">=5",
    },
    "what cannot be read": {"torch": "newest", "transformers": 5, "tokenizers": {"specifier": None}},
    "no object": ["transformers>=99"],
    "none": None,
}


def write(folder: Path, encoder: Path, requirements: Any) -> Path:
    shutil.copytree(encoder, folder)
    return write_pooled(folder, config_sentence_transformers={"requirements": requirements})


@pytest.mark.parametrize("named", UNMET)
def test_a_requirement_that_is_not_met_is_refused(encoder: Path, tmp_path: Path, named: str) -> None:
    """By the file, what it wants and what is here; the reference fails on it."""
    requirements, said = UNMET[named]
    folder = write(tmp_path / "model", encoder, requirements)
    with pytest.raises(ModelRefused, match=f"{FILE}: requirements: .*{said}") as raised:
        load(str(folder), CPU)
    assert "\n" not in str(raised.value)
    with pytest.raises(ImportError, match="requires"):
        SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("named", MET)
def test_others_are_served(encoder: Path, tmp_path: Path, named: str) -> None:
    """Met ones, and those that the reference passes over."""
    folder = write(tmp_path / "model", encoder, MET[named])
    assert load(str(folder), CPU).recipe.dense is not None
    SentenceTransformer(str(folder), device="cpu")


def test_they_count_beside_modules_alone(encoder: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", encoder, {"transformers": ">=99"})
    (folder / "modules.json").unlink()
    assert load(str(folder), CPU).recipe.dense is not None
    SentenceTransformer(str(folder), device="cpu")
