"""Sparse vectors of a large step and a real vocabulary fit into memory."""

from typing import Any

import pytest
from transformers import AutoConfig

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.schedule.fair_queue import FairQueue
from gpu_worker.schedule.interface import JobSlice
from harness.random_models.shapes import HEADED
from harness.random_models.writing import write
from shared.jobs import Job, RaggedTokens
from support.peak_memory import peak_growth
from support.tiny import CPU, SPARSE, encode, random_ids

TOKENS, VOCABULARY, GIGABYTE = 16_384, 30_522, 1_000_000_000
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ModelEngine:
    """BERT's vocabulary on an encoder that weighs nothing."""
    folder = tmp_path_factory.mktemp("splade")
    values = SMALL | {"vocab_size": VOCABULARY, "pad_token_id": 0, "initializer_range": 0.2}
    write(folder, AutoConfig.for_model("bert", **values), HEADED["tiny-splade"][1])
    return ModelEngine(load(str(folder), CPU, LoadOptions(max_tokens=256)))


def opened(engine: ModelEngine, length: int) -> Any:
    """A job of 16,384 tokens in texts of this length."""
    texts = RaggedTokens.of(random_ids([length] * (TOKENS // length), vocabulary=VOCABULARY))
    return engine.open(Job(id=1, work=encode(SPARSE, sparse_top_k=64), tokens=texts))


def test_a_step_of_16384_tokens_stays_under_a_gigabyte(engine: ModelEngine) -> None:
    """SPLADE, 64 texts of 256 tokens, a vocabulary of 30,522: whose logits would be 2 GB."""
    job = opened(engine, 256)
    step = [JobSlice(job=job, start=0, stop=64)]
    assert peak_growth(lambda: engine.launch(step).collect()) < GIGABYTE
    assert len(job.result().sparse.lengths) == 64


@pytest.mark.slow
def test_texts_of_one_token_are_cut_into_steps_that_fit(engine: ModelEngine) -> None:
    """16,384 of them, whose weights would be 2 GB, as the queue cuts them by their costs."""
    job, queue, steps = opened(engine, 1), FairQueue[int](quantum=TOKENS), list[range]()
    queue.add_job(1, job.costs)

    def serve() -> None:
        while queue.waiting_tokens:
            for units in queue.next_step(TOKENS).values():
                engine.launch([JobSlice(job=job, start=units.start, stop=units.stop)]).collect()
                steps.append(units)

    assert peak_growth(serve) < GIGABYTE
    assert len(job.result().sparse.lengths) == TOKENS
    assert 1 < len(steps) < 200
