"""What is told of rankings: how they are compared, on numbers that are known."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.util.similarity import maxsim

from benchmarks import rankings
from benchmarks.rankings import Vectors, max_sim


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
