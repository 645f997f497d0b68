"""Scores through both services equal sentence-transformers' cosine and maxsim."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import cos_sim
from sentence_transformers.util.similarity import maxsim

from selvage.v1 import ranking_pb2 as pb
from selvage.v1 import vectors_pb2 as v
from support.references import Calls, packed, words

QUERIES = [words(count, seed=100 + count) for count in (1, 7, 30)]
DOCUMENTS = [words(1 + 13 * index, seed=index) for index in range(16)] + ["", QUERIES[1]]


@pytest.fixture(scope="module")
def token_rows(oracle: SentenceTransformer) -> list[list[torch.Tensor]]:
    """Of the queries and of the documents, not normalised."""
    return [oracle.encode(texts, output_value="token_embeddings") for texts in (QUERIES, DOCUMENTS)]


def reference(token_rows: list[list[torch.Tensor]], method: int, normalize: bool | None) -> np.ndarray:
    """MiniLM's dense row is the mean of the token rows."""
    if method == v.SCORING_METHOD_DENSE:
        queries, documents = (torch.stack([rows.mean(dim=0) for rows in side]) for side in token_rows)
        return (queries @ documents.T if normalize is False else cos_sim(queries, documents)).numpy()
    if normalize is not False:
        token_rows = [[torch.nn.functional.normalize(each, dim=1) for each in side] for side in token_rows]
    return maxsim(*token_rows, length_normalize=bool(normalize)).numpy()


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize("method", [v.SCORING_METHOD_LATE_INTERACTION, v.SCORING_METHOD_DENSE])
async def test_scores_equal_sentence_transformers(
    calls: Calls, token_rows: list[list[torch.Tensor]], method: int, normalize: bool | None
) -> None:
    """As a matrix and as pairs, for every way to normalise."""
    expected = reference(token_rows, method, normalize)
    allowed = 1e-4 * max(1.0, np.abs(expected).max() / 100)  # raw rows reach hundreds
    raw = {} if normalize is None else {"normalize": normalize}
    matrix = await calls.ranking.Score(
        pb.ScoreRequest(queries=QUERIES, documents=DOCUMENTS, method=method, truncate=True, **raw)
    )
    assert (matrix.rows, matrix.columns) == expected.shape
    scores = np.array(matrix.scores).reshape(expected.shape)
    assert np.abs(scores - expected).max() < allowed
    pairs = await calls.ranking.Score(
        pb.ScoreRequest(
            queries=QUERIES, documents=DOCUMENTS[5:8], layout=v.LAYOUT_PAIRS, method=method, truncate=True, **raw
        )
    )
    assert np.abs(np.array(pairs.scores) - expected[[0, 1, 2], [5, 6, 7]]).max() < allowed


@pytest.mark.parametrize("method", [v.SCORING_METHOD_LATE_INTERACTION, v.SCORING_METHOD_DENSE])
async def test_rerank_orders_as_sentence_transformers(
    calls: Calls, token_rows: list[list[torch.Tensor]], method: int
) -> None:
    """Scores within 1e-4, the order equal, the best first."""
    expected = reference(token_rows, method, None)[1]
    response = await calls.ranking.Rerank(
        pb.RerankRequest(query=QUERIES[1], documents=DOCUMENTS, method=method, truncate=True, return_documents=True)
    )
    order = [result.index for result in response.results]
    assert order == np.argsort(-expected, kind="stable").tolist()
    assert np.abs(np.array([result.score for result in response.results]) - expected[order]).max() < 1e-4
    assert [result.document for result in response.results] == [DOCUMENTS[index] for index in order]


def given(texts: list[np.ndarray], dimensions: int) -> v.MultiVectors:
    return v.MultiVectors(dimensions=dimensions, lengths=[len(each) for each in texts], data=packed(texts))


async def scores_of(
    calls: Calls, queries: list[np.ndarray], documents: list[np.ndarray], **fields: object
) -> np.ndarray:
    width = queries[0].shape[1]
    request = pb.MaxSimRequest(queries=given(queries, width), documents=given(documents, width), **fields)
    response = await calls.ranking.MaxSim(request)
    return np.array(response.scores).reshape(response.rows, response.columns)


def rows(*lengths: int, width: int = 8, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((length, width)).astype(np.float32) for length in lengths]


def oracle_of(queries: list[np.ndarray], documents: list[np.ndarray]) -> np.ndarray:
    return maxsim([torch.from_numpy(each) for each in queries], [torch.from_numpy(each) for each in documents]).numpy()


async def test_max_sim_equals_sentence_transformers(calls: Calls) -> None:
    """Ragged lengths, a document without rows at -1e9; PAIRS is the diagonal, normalize averages over unit rows."""
    q, d = rows(3, 1, 32, seed=1), rows(5, 0, 300, seed=2)
    scores = await scores_of(calls, q, d)
    assert np.abs(scores - oracle_of(q, d)).max() < 1e-4
    assert scores[0, 1] == np.float32(-1e9)
    q, d = rows(3, 4, 5, seed=3), rows(2, 9, 1, seed=4)
    pairs = await scores_of(calls, q, d, layout=v.LAYOUT_PAIRS)
    assert np.abs(pairs[:, 0] - np.diag(oracle_of(q, d))).max() < 1e-4
    unit = [[each / np.linalg.norm(each, axis=1, keepdims=True) for each in side] for side in (q, d)]
    expected = oracle_of(*unit) / np.array([[3], [4], [5]])
    assert np.abs(await scores_of(calls, q, d, normalize=True) - expected).max() < 1e-5


async def test_max_sim_reads_every_data_type(calls: Calls) -> None:
    q, d = rows(4, width=16, seed=5), rows(7, 2, width=16, seed=6)
    exact, flat = await scores_of(calls, q, d), np.concatenate(d)
    scales = (np.abs(flat).max(axis=1) / 127).astype("<f4")
    whole = np.round(flat / scales[:, None]).astype(np.int8)
    signs = oracle_of(q, [np.where(each >= 0, 1, -1).astype(np.float32) for each in d])
    for kind, data, scaled, expected, tolerance in (
        (v.DATA_TYPE_FLOAT16, flat.astype("<f2"), b"", exact, 1e-2),
        (v.DATA_TYPE_INT8, whole, scales.tobytes(), exact, 0.5),
        (v.DATA_TYPE_BINARY, np.packbits(flat >= 0, axis=1), b"", signs, 1e-4),
    ):
        documents = v.MultiVectors(data_type=kind, dimensions=16, lengths=[7, 2], data=data.tobytes(), scales=scaled)
        response = await calls.ranking.MaxSim(pb.MaxSimRequest(queries=given(q, 16), documents=documents))
        assert np.abs(np.array(response.scores) - expected[0]).max() < tolerance
