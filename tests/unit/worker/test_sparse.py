"""Sparse vectors on the host, and the marks of instructions, against obvious twins."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.model.heads import sparse_vectors as sparse
from gpu_worker.model.heads.heads import LexicalHead
from gpu_worker.model.heads.pooling import instruction_ends
from gpu_worker.model.heads.sparse_vectors import Vector

VOCABULARY = 12
WEIGHT = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 0.5, 1.0, 1.5, 3.0])
"""Few values, so that ties are common; sums of their products are exact."""
ROW = st.lists(WEIGHT, min_size=VOCABULARY, max_size=VOCABULARY)
TOKENS = st.lists(st.tuples(st.integers(0, VOCABULARY - 1), WEIGHT), min_size=1, max_size=20)
SPARSE = st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([0.25, 0.5, 1.0, 3.0]))
TOP_K = st.integers(0, 15)


def vector(weights: dict[int, float]) -> Vector:
    ids = sorted(weights)
    return np.array(ids, dtype=np.int32), np.array([weights[identity] for identity in ids], dtype=np.float32)


def as_dict(made: Vector) -> dict[int, float]:
    """And the form that a vector must have."""
    ids, weights = made
    assert ids.dtype == np.int32
    assert weights.dtype == np.float32
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert (weights > 0).all()
    return dict(zip(ids.tolist(), weights.tolist(), strict=True))


def best(weights: dict[int, float], top_k: int) -> dict[int, float]:
    """The largest, of equal ones the smaller ids."""
    order = sorted(weights, key=lambda identity: (-weights[identity], identity))
    return {identity: weights[identity] for identity in order[: top_k or None]}


def dot(left: dict[int, float], right: dict[int, float]) -> float:
    return sum(weight * right[identity] for identity, weight in left.items() if identity in right)


@given(ROW)
def test_a_row_becomes_its_weights_above_zero(row: list[float]) -> None:
    expected = {identity: weight for identity, weight in enumerate(row) if weight > 0}
    assert as_dict(sparse.of_row(np.array(row, dtype=np.float32))) == expected


@given(st.dictionaries(st.integers(0, VOCABULARY - 1), WEIGHT), st.randoms())
def test_pairs_come_in_any_order(weights: dict[int, float], random: object) -> None:
    ids = list(weights)
    random.shuffle(ids)  # type: ignore[attr-defined]
    values = np.array([weights[identity] for identity in ids], dtype=np.float32)
    expected = {identity: weight for identity, weight in weights.items() if weight > 0}
    assert as_dict(sparse.of_pairs(np.array(ids, dtype=np.int32), values)) == expected


@given(st.lists(TOKENS, min_size=1, max_size=5), st.sets(st.integers(0, VOCABULARY - 1), max_size=4), TOP_K)
def test_tokens_become_the_largest_weight_of_each_id(
    texts: list[list[tuple[int, float]]], dropped: set[int], top_k: int
) -> None:
    """`of_tokens`: special ids left out, ids in any order and any number of times, texts that share ids."""
    expected = []
    for tokens in texts:
        largest: dict[int, float] = {}
        for identity, weight in tokens:
            if identity not in dropped and weight > largest.get(identity, 0.0):
                largest[identity] = weight
        expected.append(best(largest, top_k))
    ids = [np.array([identity for identity, _ in tokens], dtype=np.int32) for tokens in texts]
    weights = np.array([weight for tokens in texts for _, weight in tokens], dtype=np.float32)
    made = sparse.of_tokens(ids, weights, np.array(sorted(dropped), dtype=np.int32), top_k)
    assert [as_dict(vector) for vector in made] == expected


@given(st.lists(SPARSE, max_size=5))
def test_packed_vectors_read_back(texts: list[dict[int, float]]) -> None:
    """`pack`: lengths, little-endian ids and weights, one text after the other."""
    packed = sparse.pack([vector(text) for text in texts])
    ends = np.cumsum(packed.lengths)[:-1] if texts else []
    ids, weights = np.frombuffer(packed.indices, "<i4"), np.frombuffer(packed.values, "<f4")
    shares = zip(np.split(ids, ends), np.split(weights, ends), strict=True) if texts else []
    assert [dict(zip(known.tolist(), values.tolist(), strict=True)) for known, values in shares] == texts


@settings(deadline=None)
@given(st.lists(SPARSE, min_size=1, max_size=7), st.lists(SPARSE, min_size=1, max_size=7), st.sampled_from([1, 2, 64]))
def test_a_matrix_is_every_dot_product(
    queries: list[dict[int, float]], documents: list[dict[int, float]], at_once: int
) -> None:
    """`matrix`, however many queries are looked at together; empty vectors score zero."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "QUERIES_AT_ONCE", at_once)
        products = sparse.matrix([vector(query) for query in queries], [vector(document) for document in documents])
    assert products.tolist() == [[dot(query, document) for document in documents] for query in queries]


@given(st.lists(st.tuples(SPARSE, SPARSE), min_size=1, max_size=7))
def test_pairs_are_dot_products_one_by_one(pairs: list[tuple[dict[int, float], dict[int, float]]]) -> None:
    products = sparse.pairs([vector(query) for query, _ in pairs], [vector(document) for _, document in pairs])
    assert products.tolist() == [dot(query, document) for query, document in pairs]


def end_of(text: Sequence[int], marks: Sequence[tuple[int, ...]]) -> int:
    """Tokens up to and with the mark that ends first."""
    ends = [
        start + len(mark)
        for mark in marks
        for start in range(len(text) - len(mark) + 1)
        if tuple(text[start : start + len(mark)]) == mark
    ]
    return min(ends, default=0)


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=9)
MARK = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple)


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(MARK, min_size=1, max_size=3))
def test_an_instruction_ends_with_its_first_mark(texts: list[list[int]], marks: list[tuple[int, ...]]) -> None:
    """`instruction_ends`; a mark that reaches over the border of two texts is none."""
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])])
    ids = np.array([identity for text in texts for identity in text], dtype=np.int32)
    assert instruction_ends(ids, offsets, marks).tolist() == [end_of(text, marks) for text in texts]


def test_lexical_weights_are_never_negative() -> None:
    torch.manual_seed(0)
    linear, hidden = torch.nn.Linear(8, 1), torch.randn(40, 8)
    with torch.inference_mode():
        weights = LexicalHead(torch.nn.Sequential(linear))(hidden)
        expected = linear(hidden)[:, 0].clamp(min=0)
    assert torch.equal(weights, expected)
    assert (expected == 0).any()
