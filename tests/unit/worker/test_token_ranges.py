"""Dense rows of token ranges: pooled of the rows that the whole text has, whatever else the step computes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.link.request_check import JobCheck, JobLimits
from gpu_worker.model.card import card_of
from gpu_worker.model.heads.heads import DenseHead, Heads
from gpu_worker.model.heads.pooling import OF_ANY_TOKENS
from gpu_worker.model.loading import load
from gpu_worker.model.model import Abilities
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository.recipe import POOLINGS
from shared.errors import InvalidInput, LimitExceeded, UnsupportedTask
from shared.jobs import RANGE_TIMES, Classify, Job, RaggedTokens, TokenRanges
from support.in_pieces import run_in_steps
from support.random_models import random_model
from support.tiny import DENSE, MULTI, ask, dense_rows, random_ids, raw, run, token_rows

pytestmark = pytest.mark.usefixtures("one_thread")
MODES = tuple(mode for mode in POOLINGS if mode in OF_ANY_TOKENS)
TEXTS = random_ids([7, 40, 1, 130, 64])
PROMPTS = (0, 3, 0, 5, 0)
RANGES = TokenRanges(
    counts=(2, 4, 1, 5, 1),
    starts=(0, 2, 0, 3, 10, 39, 0, 0, 5, 100, 17, 129, 0),
    stops=(7, 4, 40, 9, 30, 40, 1, 6, 100, 130, 111, 130, 64),
)
"""Whole texts, neighbours, overlaps, a range in another, single tokens; two of them begin within a prompt."""
MOST = 200


@cache
def engine(name: str, modes: tuple[str, ...] = MODES) -> ModelEngine:
    """A tiny model that pools in these ways, one after the other."""
    model = load(random_model(name), Placement.choose("cpu", "float32"), LoadOptions(max_tokens=MOST))
    dense = DenseHead(modes, nn.Sequential(), model.encoder.width * len(modes))
    return ModelEngine(replace(model, heads=Heads(dense=dense, multi_vector=model.heads.multi_vector)))


def job(number: int = 1, ranges: TokenRanges = RANGES, **options: object) -> Job:
    work = raw(DENSE, **options)
    return Job(id=number, work=work, tokens=RaggedTokens.of(TEXTS), prompt_lengths=PROMPTS, ranges=ranges)


def pooled(rows: np.ndarray, start: int, stop: int) -> np.ndarray:
    """The rows `start` to `stop` - 1 of a text [L, H] in every way of MODES, by the definitions."""
    chosen, weights = rows[start:stop], np.arange(start + 1, stop + 1)[:, None]
    ways = {
        "max": chosen.max(axis=0),
        "mean": chosen.mean(axis=0),
        "mean_sqrt_len_tokens": chosen.sum(axis=0) / np.sqrt(len(chosen)),
        "weightedmean": (chosen * weights).sum(axis=0) / weights.sum(),
    }
    return np.concatenate([ways[mode] for mode in MODES])


def expected(served: ModelEngine) -> np.ndarray:
    texts = [rows.astype(np.float64) for rows in token_rows(ask(served, raw(MULTI), TEXTS))]
    number = np.repeat(np.arange(len(TEXTS)), RANGES.counts)
    bounds = zip(number, RANGES.starts, RANGES.stops, strict=True)
    return np.array([pooled(texts[text], max(start, PROMPTS[text]), stop) for text, start, stop in bounds])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3", "tiny-modernbert", "tiny-t5"])
def test_a_range_is_pooled_of_the_rows_of_its_whole_text(name: str) -> None:
    """In every way that reads any tokens; the weights of a weighted mean are those of the whole text."""
    served = engine(name)
    (result,) = run(served, [job()])
    assert np.abs(dense_rows(result) - expected(served)).max() < 1e-5


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-gemma2"])
def test_ranges_of_texts_in_pieces_are_those_of_whole_texts(name: str) -> None:
    """A range may begin in a piece and end in another: rows are kept until the text is complete."""
    served = engine(name)
    assert not served.model.whole_texts
    whole = expected(served)
    served.cut_texts(PieceLimits(longest=16))
    try:
        for seed in range(4):
            result, _ = run_in_steps(served, [job(), job(2)], seed=seed)
            assert np.abs(dense_rows(result) - whole).max() < 1e-4
    finally:
        served.cut_texts(PieceLimits())


def test_rows_of_ranges_count_in_the_cost_of_a_job() -> None:
    """A step has no more rows than the tokens that it was tried with: by whole texts, and in pieces in the last one."""
    many = TokenRanges(counts=(1, 90, 1, 1, 1), starts=(0,) * 94, stops=(7, *([40] * 90), 1, 130, 64))
    served = engine("tiny-qwen3")
    assert sorted(served.open(job(ranges=many)).costs) == sorted([7, 90, 1, 130, 64])
    assert sorted(served.open(job()).costs) == sorted(len(text) for text in TEXTS)
    served.cut_texts(PieceLimits(longest=16))
    try:
        assert list(served.open(job(ranges=many)).costs).count(90) == 1
        assert max(served.open(job()).costs) == 16
    finally:
        served.cut_texts(PieceLimits())


def test_one_range_of_the_whole_text_is_the_text() -> None:
    """To the last bit, its prompt left out as ever; and in another job of the same step."""
    served = engine("tiny-bert")
    lengths = tuple(map(len, TEXTS))
    ranges = TokenRanges(counts=(1,) * len(TEXTS), starts=(0,) * len(TEXTS), stops=lengths)
    whole, by_range = run(served, [replace(job(), ranges=None), job(2, ranges)])
    assert np.array_equal(dense_rows(whole), dense_rows(by_range))


@pytest.mark.parametrize("mode", ["cls", "lasttoken"])
def test_poolings_that_take_a_certain_token_are_refused(mode: str) -> None:
    """Also beside another one; the card says so before anybody asks."""
    served = engine("tiny-bert", ("mean", mode))
    assert not card_of(served.model).pools_spans
    with pytest.raises(UnsupportedTask, match="pools no token ranges"):
        served.open(job())
    assert card_of(engine("tiny-bert").model).pools_spans


@pytest.mark.parametrize("work", [Classify(), raw(MULTI), raw(DENSE, MULTI)])
def test_only_dense_rows_alone_have_ranges(work: object) -> None:
    """Anything else would be answered without a word about them."""
    with pytest.raises(InvalidInput, match="DENSE alone"):
        engine("tiny-bert").open(replace(job(), work=work))  # type: ignore[arg-type]


def test_a_range_within_a_prompt_that_is_left_out_is_refused() -> None:
    """A row of zeros would look like a vector."""
    with pytest.raises(InvalidInput, match="prompt"):
        engine("tiny-bert").open(
            job(
                ranges=replace(
                    RANGES,
                    stops=(*RANGES.stops[:3], 3, *RANGES.stops[4:]),
                    starts=(*RANGES.starts[:3], 1, *RANGES.starts[4:]),
                )
            )
        )


def bounded(times: Sequence[int]) -> Job:
    """Texts of ten tokens, all of which are in so many ranges."""
    count = len(times)
    ranges = TokenRanges(counts=tuple(times), starts=(0,) * sum(times), stops=(10,) * sum(times))
    return Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of(random_ids([10] * count)), ranges=ranges)


def short_spans(tokens: int, spans: int) -> Job:
    """One text, in so many ranges of its first token."""
    ranges = TokenRanges(counts=(spans,), starts=(0,) * spans, stops=(1,) * spans)
    return Job(id=1, work=raw(DENSE), tokens=RaggedTokens.of(random_ids([tokens])), ranges=ranges)


def test_a_sequence_has_no_more_spans_than_a_step_has_tokens() -> None:
    """It ends within one step, which pools all of them; a longer text may have a span for each of its tokens."""
    check = JobCheck(card_of(engine("tiny-bert").model), JobLimits(), 256)
    check(short_spans(tokens=130, spans=256))
    check(short_spans(tokens=300, spans=300))
    with pytest.raises(LimitExceeded, match=r"a sequence of 130 tokens has 257 spans, the limit is 256, the tokens of"):
        check(short_spans(tokens=130, spans=257))
    with pytest.raises(LimitExceeded, match=r"a sequence of 300 tokens has 301 spans, the limit is 300"):
        check(short_spans(tokens=300, spans=301))


def test_a_worker_bounds_what_ranges_sum() -> None:
    """Of each text by itself: memory for sums is taken a step at a time."""
    model = engine("tiny-bert").model
    check = JobCheck(card_of(model), JobLimits(), 2048)
    check(bounded([RANGE_TIMES, 1, RANGE_TIMES]))
    with pytest.raises(LimitExceeded, match=f"{10 * RANGE_TIMES + 10} tokens together"):
        check(bounded([1, RANGE_TIMES + 1, 1]))
    assert Abilities(model).pools_spans
