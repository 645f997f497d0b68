"""A step launches and never waits: nothing is read back from the device before everything is shipped."""

from collections.abc import Callable
from functools import cache

import pytest
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from shared.jobs import Classify, Encode, Job, MaxSim, Score
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support.device import ReadBack, watched
from support.native import no_kernels
from support.random_models import random_model
from support.tiny import CPU, DENSE, MULTI, SPARSE, encode, raw, run, score, tokens

LATE = ScoringMethod.LATE_INTERACTION
VECTORS = MultiVectors(data_type=DataType.BINARY, dimensions=8, lengths=(2, 0, 3), data=bytes(range(5)))
pytestmark = pytest.mark.usefixtures("one_thread")
CASES: dict[str, tuple[str, list[Encode | Score | Classify]]] = {
    "dense": ("tiny-bert", [encode(DENSE), encode(DENSE, dimensions=16), raw(DENSE)]),
    "every data type": ("tiny-bert", [encode(DENSE, MULTI, data_type=data_type) for data_type in DataType]),
    "decoder": ("tiny-gemma2", [encode(DENSE, MULTI, token_ids=True)]),
    "relative positions": ("tiny-deberta-v2", [encode(DENSE, MULTI)]),
    "relative distances": ("tiny-mpnet", [encode(DENSE, MULTI)]),
    "projected token rows": (
        "tiny-colbert",
        [encode(MULTI, token_ids=True), score(LATE, 2), score(LATE, 1, explain=True)],
    ),
    "splade": ("tiny-splade", [encode(SPARSE), encode(SPARSE, sparse_top_k=3), score(ScoringMethod.SPARSE, 2)]),
    "lexical": ("tiny-bge-m3", [encode(DENSE, SPARSE, MULTI), encode(SPARSE, sparse_top_k=3)]),
    "scores": (
        "tiny-bge-m3",
        [
            score(method, 2, layout, mean=True)
            for layout in Layout
            for method in ScoringMethod
            if method not in (ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE)  # both are other models'
        ],
    ),
    "classify": ("tiny-classifier", [Classify()]),
    "pairs of texts": ("tiny-cross-encoder", [Classify()]),
    "classify tokens": ("tiny-token-classifier", [Classify(tokens=True), Classify(tokens=True, token_id=300)]),
    "yes or no": ("tiny-yes-no", [Classify()]),
}


def jobs_of(works: list[Encode | Score | Classify]) -> list[Job]:
    beside = {"prompt_lengths": (1, 2, 0, 0), "second_segments": (1, 0, 5, 2), "unattended_tails": (0, 5, 1, 1)}
    texts = [
        Job(id=number, work=work, tokens=tokens(3, 19, 7, 7, seed=number), **beside)
        for number, work in enumerate(works)
    ]
    compared = [
        MaxSim(queries=VECTORS, documents=VECTORS, layout=layout, unit_rows=True, mean=paired, explain=paired)
        for layout, paired in ((Layout.PAIRS, True), (Layout.MATRIX, False))
    ]
    return texts + [Job(id=100 + number, work=work) for number, work in enumerate(compared)]


@cache
def engine_of(name: str) -> ModelEngine:
    """What a device without a kernel runs: a processor's own way may read what lies in its memory anyway."""
    with pytest.MonkeyPatch.context() as patch:
        no_kernels(patch)
        return ModelEngine(load(random_model(name), CPU))


@pytest.mark.parametrize("width", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_no_step_reads_from_the_device(case: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of job and every head, with given vectors in the same steps."""
    name, works = CASES[case]
    engine = engine_of(name)
    jobs = jobs_of(works)
    if engine.model.heads.multi_vector is not None:
        mixed = MaxSim(queries=None, documents=VECTORS, layout=Layout.MATRIX, unit_rows=True, mean=True, explain=True)
        jobs.append(Job(id=200, work=mixed, tokens=tokens(3, 19), unattended_tails=(1, 4)))
    with watched(engine, monkeypatch) as device:
        run(engine, jobs, width)
    assert device.computed > 100  # it saw the steps at all


READS: list[Callable[[Tensor], object]] = [
    lambda rows: rows.sum().item(),
    lambda rows: rows.cpu(),
    lambda rows: 1 if rows.sum() > 0 else 0,
    lambda rows: rows[rows > 0],
]


@pytest.mark.parametrize("read", READS, ids=["item", "cpu", "a condition", "a mask"])
def test_an_encoder_that_reads_is_caught(read: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    engine = engine_of("tiny-bert")
    honest = type(engine.model.encoder).__call__

    def reading(encoder: Encoder, batch: RaggedBatch) -> Tensor:
        hidden = honest(encoder, batch)
        read(hidden)
        return hidden

    monkeypatch.setattr(type(engine.model.encoder), "__call__", reading)
    with watched(engine, monkeypatch), pytest.raises(ReadBack):
        run(engine, jobs_of([encode(DENSE)]))
