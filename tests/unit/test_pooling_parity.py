"""The frontend's token pooling against the one it repeats, that of sentence-transformers."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.multi_vector_encoder.modules.token_pooling import HierarchicalTokenPooling

from frontend_service.domain.requests import TokenPooling
from frontend_service.postprocess import pool

seeds = st.integers(0, 2**32 - 1)
factors = st.sampled_from([1.0, 1.5, 2.0, 3.0, 10.0]) | st.floats(1, 10)


def reference(rows: np.ndarray, factor: float, protected: int = 1, normalize: bool = True) -> np.ndarray:
    pooling = HierarchicalTokenPooling(factor, num_protected_tokens=protected, normalize_embeddings=normalize)
    (pooled,) = pooling.pool([torch.from_numpy(rows)])
    return pooled.numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def agree(rows: np.ndarray, factor: float, protected: int, normalize: bool) -> int:
    """How many rows both leave."""
    expected = reference(rows, factor, protected, normalize)
    ours = pool(rows, TokenPooling(factor=factor, protected=protected), normalize)
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)
    return len(ours)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.integers(2, 16), factors, st.integers(0, 3), st.booleans(), st.booleans(), seeds)
def test_random_rows(
    n: int, width: int, factor: float, protected: int, of_unit: bool, normalize: bool, seed: int
) -> None:
    """The same rows in the same order, whatever the length of those that come; of unit rows as many as predicted."""
    rows = np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)
    left = agree(unit(rows) if of_unit else rows, factor, protected, normalize)
    assert left <= TokenPooling(factor=factor, protected=protected).rows_left(n)
    assert left == TokenPooling(factor=factor, protected=protected).rows_left(n) or not of_unit


@given(st.integers(1, 40), st.integers(1, 4), factors)
def test_equal_rows_whose_products_are_exact(n: int, kinds: int, factor: float) -> None:
    """Ties are broken as the reference breaks them; with equal distances fewer clusters than asked for are left."""
    agree(np.resize(np.eye(kinds, 8, dtype=np.float32), (n, 8)), factor, 1, True)


@given(st.integers(1, 40), st.integers(2, 16), factors, seeds)
def test_one_row_many_times(n: int, width: int, factor: float, seed: int) -> None:
    """Gives that row, as often as predicted at most; how often hangs on how the product of a row with itself rounds."""
    row = unit(np.random.default_rng(seed).standard_normal((1, width))).astype(np.float32)
    pooled = pool(np.tile(row, (n, 1)), TokenPooling(factor=factor), True)
    assert 1 <= len(pooled) <= TokenPooling(factor=factor).rows_left(n)
    np.testing.assert_allclose(pooled, np.tile(row, (len(pooled), 1)), rtol=0, atol=1e-6)
