"""What a second run is told to have repeated."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ratios, repeat
from benchmarks.repeat import compare_all

RESULTS = repeat.RESULTS


def maxsim(ratio: float) -> dict[str, Any]:
    against = {"PyLate": {"ratio": ratio}, "selvage, from a list": {"ratio": 1.5}}
    machine = {"commit": "abc", "processor": "some"}
    return {"benchmark": "maxsim-cpu", "machine": machine, "cases": [{"documents": 1000, "against": against}]}


def folder(path: Path, result: dict[str, Any]) -> Path:
    path.mkdir()
    (path / f"{result['benchmark']}.json").write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(("second", "moved", "near"), [(4.4, 0.1, 1), (4.5, 0.125, 0), (3.0, -0.25, 0)])
def test_a_ratio_moves_by_a_share_of_the_first(tmp_path: Path, second: float, moved: float, near: int) -> None:
    """Of all that peers are compared with; ours against ours is no claim."""
    first = folder(tmp_path / "first", maxsim(4.0))
    again = folder(tmp_path / "second", maxsim(second))
    found = compare_all(first, again)["benchmarks"]["maxsim-cpu"]
    assert (found["near"], found["of"]) == (near, 1)
    assert found["ratios"] == [
        {"ratio": "1,000 documents: selvage over PyLate", "first": 4.0, "second": second, "moved": moved}
    ]


def test_runs_without_a_common_benchmark_are_told(tmp_path: Path) -> None:
    """Else nothing compared would look like nothing moved."""
    first = folder(tmp_path / "first", maxsim(4.0))
    (tmp_path / "second").mkdir()
    with pytest.raises(ValueError, match="no two runs"):
        compare_all(first, tmp_path / "second")
    with pytest.raises(ValueError, match="no two runs"):
        compare_all(first, first)


@pytest.mark.parametrize("name", [name for name in ratios.KNOWN if (RESULTS / f"{name}.json").is_file()])
def test_the_results_that_there_are_have_ratios(name: str) -> None:
    """Read as their benchmarks write them."""
    found = ratios.of(json.loads((RESULTS / f"{name}.json").read_text()))
    assert found
    assert all(ratio > 0 for ratio in found.values())
