"""Rankings of real texts: docstrings of Python's own library, in every number format of this processor."""

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


def test_a_query_has_one_document_which_does_not_begin_with_it(texts: list[Docstring]) -> None:
    assert len({text.summary for text in texts}) == len({text.document for text in texts}) == COUNT
    assert not any(text.document.startswith(text.summary) for text in texts)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_max_sim_equals_sentence_transformers(queries: list[int], documents: list[int]) -> None:
    draw = np.random.default_rng(sum(documents))
    rows = [[draw.standard_normal((n, 8)).astype(np.float32) for n in side] for side in (queries, documents)]
    expected = maxsim(*([torch.from_numpy(text) for text in side] for side in rows)).numpy()
    assert np.abs(max_sim(*rows) - expected).max() < 1e-4


def test_rankings_are_compared() -> None:
    """One of three queries finds another document first; its own is second."""
    unit = np.eye(12, dtype=np.float32)
    exact = Vectors(unit[:3], unit)
    turned = unit[:3] + 2 * unit[[5, 1, 2]]
    figures = rankings.compared(Vectors(turned, unit).scores, exact.scores, 10, "ten")
    assert figures["same first document %"] == figures["recall@1 %"] == pytest.approx(200 / 3)
    assert figures["largest difference of a score"] == 2
    late = rankings.compared(
        np.array([[1.0, 2, 3, 0], [1, 2, 0, 0]]), np.array([[1.0, 3, 2, 0], [1, 2, 0, 0]]), 3, "three"
    )
    assert (late["same top three, in order %"], late["top three overlap %"], late["recall@1 %"]) == (50, 100, 50)
    apart = rankings.distances(np.array([[1.0, 0], [1, 1]]), np.array([[2.0, 0], [0, 1]]))
    assert apart["largest distance"] == pytest.approx(1 - 0.5**0.5)
    assert apart["median"] == pytest.approx(apart["largest distance"] / 2)


def same_ranking(scores: np.ndarray, exact: np.ndarray, count: int) -> bool:
    """Whether the best `count` documents of each query have the exact scores of those ranks."""
    ours, theirs = (np.take_along_axis(exact, best(ranks, count), axis=1) for ranks in (scores, exact))
    return bool(np.abs(ours - theirs).max() < NEAR)


@pytest.mark.parametrize("side", SIDES)
def test_formats_rank_as_sentence_transformers_does_or_nearly_so(
    side: str, texts: list[Docstring], exact: Vectors
) -> None:
    """The top ten of each query and all scores in float32; in others the overlap of the top tens, the document that was
    wanted, and the goals of cosines for int8."""
    if side not in sides():
        pytest.skip("this processor makes no such products")
    ours = rankings.embedded(texts, SIDES[side])
    scores, expected = ours.scores, exact.scores
    if side == OUR_SIDE:
        assert np.abs(scores - expected).max() < 1e-5
        assert same_ranking(scores, expected, 10)
        return
    figures, wanted = (rankings.compared(found, expected, 10, "ten") for found in (scores, expected))
    assert figures["top ten overlap %"] > {"selvage bfloat16": 97, "selvage int8": 90}[side]
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
