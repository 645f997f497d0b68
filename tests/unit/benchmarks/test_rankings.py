"""Rankings of real texts: docstrings of Python's own library, in every number format of this processor."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.util.similarity import maxsim

from benchmarks import rankings
from benchmarks.docstrings import PYTHON, Docstring, docstrings
from benchmarks.rankings import OUR_SIDE, SIDES, Vectors, best, max_sim, sides

COUNT, LATE = 120, 30
NEAR = 2e-5
"""What two scores of equal rank may differ by: documents whose scores are equal may stand in either order."""


@pytest.fixture(scope="module")
def texts() -> list[Docstring]:
    return list(islice(docstrings([PYTHON]), COUNT))


@pytest.fixture(scope="module")
def exact(texts: list[Docstring]) -> Vectors:
    return rankings.reference(texts)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_max_sim_equals_sentence_transformers(queries: Sequence[int], documents: Sequence[int]) -> None:
    draw = np.random.default_rng(sum(documents))
    rows = [[draw.standard_normal((n, 8)).astype(np.float32) for n in side] for side in (queries, documents)]
    expected = maxsim(*([torch.from_numpy(each) for each in side] for side in rows)).numpy()
    assert np.abs(max_sim(*rows) - expected).max() < 1e-4


def test_rankings_are_compared() -> None:
    """One of three queries finds another document first; its own is second."""
    unit = np.eye(12, dtype=np.float32)
    exact = Vectors(queries=unit[:3], documents=unit)
    turned = unit[:3] + 2 * unit[[5, 1, 2]]
    figures = rankings.ranked(Vectors(queries=turned, documents=unit), exact)
    assert figures["same first document %"] == figures["recall@1 %"] == pytest.approx(200 / 3)
    assert figures["largest difference of a score"] == 2
    late = rankings.late_ranked(np.array([[1.0, 2, 3, 0], [1, 2, 0, 0]]), np.array([[1.0, 3, 2, 0], [1, 2, 0, 0]]))
    assert (late["same top three, in order %"], late["top three overlap %"], late["recall@1 %"]) == (50, 100, 50)
    apart = rankings.distances(np.array([[1.0, 0], [1, 1]]), np.array([[2.0, 0], [0, 1]]))
    assert apart["largest distance"] == pytest.approx(1 - 0.5**0.5)
    assert apart["median"] == pytest.approx(apart["largest distance"] / 2)


def same_ranking(scores: np.ndarray, exact: np.ndarray, count: int) -> bool:
    """Whether the best `count` documents of each query have the exact scores of those ranks."""
    ours, theirs = (np.take_along_axis(exact, best(each, count), axis=1) for each in (scores, exact))
    return bool(np.abs(ours - theirs).max() < NEAR)


def test_float32_ranks_as_sentence_transformers_does(texts: list[Docstring], exact: Vectors) -> None:
    """The top ten of each query, and all scores."""
    ours = rankings.embedded(texts, SIDES[OUR_SIDE])
    scores, expected = (vectors.queries @ vectors.documents.T for vectors in (ours, exact))
    assert np.abs(scores - expected).max() < 1e-5
    assert same_ranking(scores, expected, 10)


@pytest.mark.parametrize(("side", "overlap"), [("selvage bfloat16", 97), ("selvage int8", 90)])
def test_faster_formats_rank_nearly_so(side: str, overlap: float, texts: list[Docstring], exact: Vectors) -> None:
    """Overlap of the top tens, the document that was wanted, and the goals of cosines for int8."""
    if side not in sides():
        pytest.skip("this processor makes no such products")
    ours = rankings.embedded(texts, SIDES[side])
    figures, wanted = rankings.ranked(ours, exact), rankings.ranked(exact, exact)
    assert figures["top ten overlap %"] > overlap
    assert figures["recall@1 %"] > wanted["recall@1 %"] - 5
    apart = rankings.distances(ours.documents, exact.documents)
    assert all(apart[name] <= limit for name, limit in rankings.INT8_GOAL.items())
    assert apart["mean distance"] > 1e-7  # it did run in that format


def test_late_interaction_ranks_as_numpy_does(texts: list[Docstring], tmp_path: Path) -> None:
    """The top three of each query in float32, by the rows of sentence-transformers."""
    expected = rankings.late_reference(texts[:LATE], tmp_path / "late")
    scores = rankings.late_scores(texts[:LATE], tmp_path / "late", SIDES[OUR_SIDE])
    assert np.abs(scores - expected).max() < 1e-4
    assert same_ranking(scores, expected, 3)
