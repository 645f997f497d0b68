"""Listwise rerankers on the worker: rows at the markers of a block are those of transformers, in any company."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.link.request_check import JobCheck, JobLimits
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from shared.errors import LimitExceeded, UnsupportedTask
from shared.jobs import Job, RaggedTokens, TokenRanges
from shared.vectors import Layout, ScoringMethod
from support import listwise
from support.in_pieces import run_in_steps
from support.listwise import TEXTS, Twin
from support.native import needs_kernels
from support.tiny import CPU, DENSE, ask, dense_rows, random_ids, raw, run, score

pytestmark = pytest.mark.usefixtures("one_thread")
QUERIES = ("boats", "where is the bread?")
LONGEST = LoadOptions(max_tokens=1536)
"""No block has more tokens; the gate runs texts as long as that."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return listwise.write(tmp_path_factory.mktemp("listwise") / "tiny")


@pytest.fixture(scope="module")
def twin(folder: Path) -> Twin:
    return Twin.read(folder)


@pytest.fixture(scope="module")
def engine(folder: Path) -> ModelEngine:
    return ModelEngine(load(str(folder), CPU, LONGEST))


@pytest.fixture
def whole(engine: ModelEngine) -> Iterator[ModelEngine]:
    """The engine, with whole texts again behind the test."""
    yield engine
    engine.cut_texts(PieceLimits())


def job(twin: Twin, number: int = 1) -> Job:
    """The blocks of two queries with all texts and with three, as a frontend sends them."""
    prompts = [twin.prompt(QUERIES[0], TEXTS), twin.prompt(QUERIES[1], TEXTS[:3], "be strict")]
    sequences = [twin.tokenizer(prompt)["input_ids"] for prompt in prompts]
    markers = twin.tokenizer.convert_tokens_to_ids([listwise.DOCUMENT_MARKER, listwise.QUERY_MARKER])
    places = [[place for place, token in enumerate(ids) if token in markers] for ids in sequences]
    starts = tuple(place for each in places for place in each)
    ranges = TokenRanges(counts=tuple(map(len, places)), starts=starts, stops=tuple(start + 1 for start in starts))
    return Job(id=number, work=raw(DENSE), tokens=RaggedTokens.of(sequences), ranges=ranges)


def expected(twin: Twin) -> np.ndarray:
    rows = [twin.vectors(twin.prompt(QUERIES[0], TEXTS)), twin.vectors(twin.prompt(QUERIES[1], TEXTS[:3], "be strict"))]
    return torch.cat([part for block in rows for part in block]).numpy()


def scores(rows: np.ndarray) -> np.ndarray:
    """The cosines of both blocks' documents [11] with their queries."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first, second = unit[: len(TEXTS) + 1], unit[len(TEXTS) + 1 :]
    return np.concatenate([block[:-1] @ block[-1] for block in (first, second)])


def assert_blocks_are_those_of_transformers(engine: ModelEngine, twin: Twin) -> None:
    """Whole, in pieces of which several have markers, and with the words that all blocks begin with computed once."""
    assert not engine.model.whole_texts
    wanted, token_bytes = expected(twin), engine.model.token_bytes
    for longest, shares in ((0, False), (16, False), (64, False), (100, False), (0, True), (64, True)):
        engine.cut_texts(PieceLimits(longest=longest, shares=shares, together=4096, token_bytes=token_bytes))
        for result in run_in_steps(engine, [job(twin), job(twin, 2)], seed=longest):
            assert np.abs(dense_rows(result) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_blocks_are_those_of_transformers(whole: ModelEngine, twin: Twin) -> None:
    assert_blocks_are_those_of_transformers(whole, twin)


def test_scores_in_bfloat16_are_near_those_of_float32(folder: Path, twin: Twin) -> None:
    """The format of the published weights: some thousandths off, and not much further than transformers' own."""
    engine = ModelEngine(load(str(folder), Placement(device=CPU.device, dtype=torch.bfloat16), LONGEST))
    half = replace(twin, model=deepcopy(twin.model).bfloat16())
    exact = scores(expected(twin))
    own, theirs = (
        np.abs(scores(rows) - exact).max() for rows in (dense_rows(run(engine, [job(twin)])[0]), expected(half))
    )
    assert own < max(2e-2, 2 * theirs)
    assert theirs < 4e-2  # else it would prove nothing


@needs_kernels
def test_neighbours_change_no_bit(whole: ModelEngine, twin: Twin) -> None:
    """Other texts of the step, however blocks are cut."""
    assert not whole.model.other_bits
    alone = dense_rows(run(whole, [job(twin)])[0])
    for neighbours in (1, 63):
        texts = random_ids([3 + 5 * (number % 17) for number in range(neighbours)], seed=9, vocabulary=300)
        others = [Job(id=2 + n, work=raw(DENSE), tokens=RaggedTokens.of([text])) for n, text in enumerate(texts)]
        results = run(whole, [*others[::2], job(twin), *others[1::2]])
        assert np.array_equal(dense_rows(results[len(others[::2])]), alone)
    for shares in (False, True):
        whole.cut_texts(PieceLimits(longest=16, shares=shares, together=4096))
        for seed in range(3):
            others = [
                Job(id=5, work=raw(DENSE), tokens=RaggedTokens.of([text]))
                for text in random_ids([3, 40, 100, 17], seed=seed, vocabulary=300)
            ]
            among = run_in_steps(whole, [job(twin), *others, job(twin, 2)], seed=seed)
            assert np.array_equal(dense_rows(among[0]), alone)
            assert np.array_equal(dense_rows(among[-1]), alone)


def test_the_card_names_no_length_over_the_context(folder: Path) -> None:
    """Lowered by --max-tokens or by what the device keeps; with a fingerprint of its own."""
    model = load(str(folder), CPU, LoadOptions(max_tokens=1000))
    cards = [card_of(model), card_of(model, chunk_tokens=64, cache_tokens=400)]
    for card, longest in zip(cards, (1000, 400), strict=True):
        assert card.listwise is not None
        told = (card.max_tokens, card.listwise.query_length, card.listwise.document_length)
        assert told == (longest, min(512, longest), longest)
    assert cards[0].fingerprint != cards[1].fingerprint


def test_layers_with_windows_have_the_limits_of_the_later_model(tmp_path: Path) -> None:
    """v3.5 reads longer queries and documents; its rows are those of transformers too."""
    folder = listwise.write(tmp_path / "windowed", windowed=True)
    engine = ModelEngine(load(str(folder), CPU, LONGEST))
    blocks = engine.model.listwise
    assert blocks is not None
    assert (blocks.query_length, blocks.document_length) == (1024, 8192)
    assert_blocks_are_those_of_transformers(engine, Twin.read(folder))


def test_a_worker_scores_no_sequences_by_it(engine: ModelEngine) -> None:
    """A Score is no way to ask for it."""
    with pytest.raises(UnsupportedTask):
        ask(engine, score(ScoringMethod.LISTWISE, 1, Layout.MATRIX), random_ids([4, 5], vocabulary=300))


def test_rows_count_by_their_width(engine: ModelEngine) -> None:
    """A job whose rows would not fit into a message is refused though the card has no dimensions."""
    card = card_of(engine.model)
    assert card.listwise is not None
    wide = replace(card, listwise=replace(card.listwise, dimensions=2**24))
    many = Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of([[5]] * 2))
    JobCheck(card, JobLimits(), 4096)(many)
    with pytest.raises(LimitExceeded, match="the vectors of a job"):
        JobCheck(wide, JobLimits(), 4096)(many)
