"""BGE-M3's three outputs and its hybrid score, mixed in one step, against the paper written out (arXiv:2402.03216)."""

from pathlib import Path

import numpy as np
import pytest

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from shared.jobs import HybridWeights, Job, MaxSim, RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support import bge_m3
from support.bge_m3 import WEIGHTS, Paper
from support.tiny import (
    CPU,
    DENSE,
    MULTI,
    SPARSE,
    assert_same,
    encode,
    run,
    score,
    scores,
)


@pytest.fixture(scope="module")
def paper_and_engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Paper, ModelEngine]:
    """The reference, and the worker with the directory that it wrote."""
    folder: Path = tmp_path_factory.mktemp("bge-m3")
    paper = bge_m3.write(folder)
    return paper, ModelEngine(load(str(folder), CPU))


def texts_of(*lengths: int, seed: int) -> list[list[int]]:
    """[CLS], words of a small vocabulary so that some are common, unknown ones among them, [SEP]."""
    generator = np.random.default_rng(seed)
    return [[2, *generator.choice([*[1] * 6, *range(100, 140)], length - 2).tolist(), 3] for length in lengths]


def given_vectors(*lengths: int, seed: int) -> MultiVectors:
    rows = np.random.default_rng(seed).standard_normal((sum(lengths), 8)).astype("<f4")
    return MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=lengths, data=rows.tobytes())


METHODS = (ScoringMethod.DENSE, ScoringMethod.SPARSE, ScoringMethod.LATE_INTERACTION, ScoringMethod.HYBRID)
TEXTS = {
    "short": texts_of(3, 50, 12, seed=1),
    "even": texts_of(9, 9, 30, seed=2),
    "odd": texts_of(7, 21, 4, 33, seed=3),
    "scored": texts_of(5, 11, 20, 3, 40, seed=4),
    "paired": texts_of(5, 11, 3, 20, 8, 41, seed=5),
}
ENCODES = {
    "48 dimensions": ("short", encode(DENSE, dimensions=48)),
    "16 dimensions": ("even", encode(DENSE, dimensions=16)),
    "all three": ("odd", encode(DENSE, SPARSE, MULTI, token_ids=True)),
    "weights": ("short", encode(SPARSE)),
    "strongest": ("odd", encode(SPARSE, sparse_top_k=5)),
    "tokens": ("even", encode(MULTI, token_ids=True)),
}


def mixed_jobs() -> dict[str, Job]:
    """One step's worth of everything that the model can do."""
    works = {name: (texts, work) for name, (texts, work) in ENCODES.items()}
    for method in METHODS:
        options = {"mean": method is ScoringMethod.LATE_INTERACTION}
        if method is ScoringMethod.HYBRID:
            options["weights"] = WEIGHTS
        works[f"{method.name} matrix"] = ("scored", score(method, 2, Layout.MATRIX, **options))
        works[f"{method.name} pairs"] = ("paired", score(method, 3, Layout.PAIRS, **options))
    jobs = {
        name: Job(id=number, work=work, tokens=RaggedTokens.of(TEXTS[texts]))
        for number, (name, (texts, work)) in enumerate(works.items())
    }
    given = {"queries": given_vectors(3, 1, seed=8), "documents": given_vectors(2, 0, 5, seed=9)}
    jobs["given"] = Job(id=100, work=MaxSim(**given, layout=Layout.MATRIX, unit_rows=True, mean=True))
    return jobs


@pytest.mark.parametrize("width", [None, 1, 2])
def test_a_mixed_step_equals_each_job_alone(paper_and_engine: tuple[Paper, ModelEngine], width: int | None) -> None:
    """Vectors at three widths, weights with and without a limit, scores by every method in both layouts."""
    engine, jobs = paper_and_engine[1], list(mixed_jobs().values())
    for job, ours in zip(jobs, run(engine, jobs, width), strict=True):
        assert_same(ours, run(engine, [job])[0])


def test_scores_of_a_mixed_step_are_those_of_the_paper(paper_and_engine: tuple[Paper, ModelEngine]) -> None:
    """By every method, in both layouts."""
    paper, engine = paper_and_engine
    jobs = mixed_jobs()
    results = dict(zip(jobs, run(engine, list(jobs.values())), strict=True))
    scored, paired = ([paper.of(text) for text in TEXTS[name]] for name in ("scored", "paired"))
    for method in METHODS:
        matrix = [[paper.score(query, document)[method] for document in scored[2:]] for query in scored[:2]]
        assert np.allclose(scores(results[f"{method.name} matrix"], 3), matrix, rtol=1e-5, atol=1e-4)
        pairs = [paper.score(query, document)[method] for query, document in zip(paired[:3], paired[3:], strict=True)]
        assert np.allclose(scores(results[f"{method.name} pairs"])[:, 0], pairs, rtol=1e-5, atol=1e-4)


def test_parts_of_a_hybrid_that_count_nothing_are_not_computed(paper_and_engine: tuple[Paper, ModelEngine]) -> None:
    _, engine = paper_and_engine
    alone = {"dense": ScoringMethod.DENSE, "sparse": ScoringMethod.SPARSE}
    for part, method in alone.items():
        weights = HybridWeights(**(dict.fromkeys(("dense", "sparse", "multi_vector"), 0.0) | {part: 7.0}))
        works = [score(ScoringMethod.HYBRID, 2, weights=weights), score(method, 2)]
        jobs = [Job(id=1, work=work, tokens=RaggedTokens.of(TEXTS["scored"])) for work in works]
        hybrid, single = (run(engine, [job])[0].scores for job in jobs)
        assert hybrid == single
