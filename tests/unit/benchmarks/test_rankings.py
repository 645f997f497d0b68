"""How rankings are compared, and the texts that are ranked."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.util.similarity import maxsim

from benchmarks import rankings
from benchmarks.docstrings import PYTHON, docstrings
from benchmarks.rankings import Vectors, max_sim


def test_a_query_has_one_document_which_does_not_begin_with_it() -> None:
    texts = list(islice(docstrings([PYTHON]), 120))
    assert len({text.summary for text in texts}) == len({text.document for text in texts}) == 120
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
    scores = [np.array([[1.0, *first, 0], [1, 2, 0, 0]]) for first in ((2, 3), (3, 2))]
    late = rankings.compared(*scores, 3, "three")
    assert (late["same top three, in order %"], late["top three overlap %"], late["recall@1 %"]) == (50, 100, 50)
    apart = rankings.distances(np.array([[1.0, 0], [1, 1]]), np.array([[2.0, 0], [0, 1]]))
    assert apart["largest distance"] == pytest.approx(1 - 0.5**0.5)
    assert apart["median"] == pytest.approx(apart["largest distance"] / 2)
