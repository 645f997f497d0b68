"""Models whose layers run by the processor's kernels give a text the same bits alone and in any batch, order, cut,
company and number of threads; the card tells which models these are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.kernels.cpu.products import product
from gpu_worker.model.card import card_of
from gpu_worker.model.heads.heads import DenseHead, Heads
from gpu_worker.model.loading import Model, load
from gpu_worker.model.native.native_model import NativeModel
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune.linear import NativeLinear, install_native
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.probes import Probes
from harness.random_models import miniature
from shared.jobs import Classify, Encode, Job, JobResult, RaggedTokens
from shared.vectors import Layout, ScoringMethod
from support.in_pieces import run_in_steps
from support.native import LIBRARY, needs_kernels, no_kernels
from support.random_models import random_model
from support.tiny import CPU, DENSE, MULTI, SPARSE, ask, dense_rows, encode, random_ids, run, score, scores, sparse_rows
from support.tiny import token_rows as rows_of_tokens

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("one_thread"),
]
FORMATS = [str(dtype)[6:] for dtype in sorted(LIBRARY.formats, key=str)] + ["int8"] * (not LIBRARY.missing)
NATIVE = sorted(LIBRARY.formats, key=str)
ENCODERS = ["tiny-bert", "tiny-modernbert", "tiny-qwen3", "tiny-gemma2", "tiny-mistral"]
HEADS = ["tiny-splade", "tiny-colbert", "tiny-bge-m3", "tiny-cross-encoder", "tiny-token-classifier", "tiny-yes-no"]
MOST = 72
"""Most tokens of a text."""
Ids = list[list[int]]


def by_turns(cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Each case in one of the number formats, the next one in the next; in all of them by `make test-slow`."""
    return [
        pytest.param(*case, number_format, marks=() if (place + number) % len(FORMATS) == 0 else pytest.mark.slow)
        for place, case in enumerate(cases)
        for number, number_format in enumerate(FORMATS)
    ]


@cache
def engine(name: str, number_format: str) -> ModelEngine:
    """An engine as it is loaded without a setting."""
    dtype, linear = ("float32", "int8") if number_format == "int8" else (number_format, "auto")
    placement = Placement.choose("cpu", dtype)  # type: ignore[arg-type]
    return ModelEngine(load(random_model(name), placement, LoadOptions(max_tokens=MOST, linear=linear)))  # type: ignore[arg-type]


def rows_by_text(model: Model, result: JobResult, texts: Ids) -> list[list[np.ndarray]]:
    """Everything that a result has of each text."""
    columns: list[Sequence[np.ndarray]] = []
    if result.dense is not None:
        columns.append(list(dense_rows(result)))
    if result.tokens is not None:
        columns.append(rows_of_tokens(result))
    if result.sparse is not None:
        columns.append(list(sparse_rows(result, model.vocabulary_size)))
    if result.scores:
        classifier = model.recipe.classifier
        logits = scores(result, len(classifier.labels) if classifier and classifier.labels else 1)
        ends = np.cumsum([len(text) for text in texts])[:-1]
        columns.append(list(logits) if model.heads.token_classifier is None else np.split(logits, ends))
    return [list(rows) for rows in zip(*columns, strict=True)]


def work_of(model: Model) -> Classify | Encode:
    """A job for everything that a model gives."""
    heads = model.heads
    if heads.token_classifier is not None or heads.classifier is not None:
        return Classify(tokens=heads.token_classifier is not None)
    outputs = [
        kind for kind, head in ((DENSE, heads.dense), (MULTI, heads.multi_vector), (SPARSE, heads.sparse)) if head
    ]
    return encode(*outputs)


def answers(running: ModelEngine, texts: Ids) -> list[list[np.ndarray]]:
    """Rows of each of some texts that are computed in one step."""
    return rows_by_text(running.model, ask(running, work_of(running.model), texts), texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Some texts, and how they are computed: `alike` of each text's first tokens are those of the first text."""

    lengths: list[int]
    alike: list[int]
    jobs: int
    longest_piece: int
    shares: bool
    together: int
    threads: int
    seed: int

    @property
    def texts(self) -> Ids:
        texts = random_ids(self.lengths, self.seed)
        for text, alike in zip(texts[1:], self.alike, strict=False):
            count = min(alike, len(text), len(texts[0]))
            text[:count] = texts[0][:count]
        return texts

    def limits(self, model: Model) -> PieceLimits:
        """Pieces and shared beginnings, as far as the model lets its texts have them."""
        return PieceLimits(
            longest=0 if model.whole_texts else self.longest_piece,
            token_bytes=model.token_bytes,
            shares=self.shares and not model.unshared,
            together=self.together,
        )


DRAWS = st.builds(
    Draw,
    lengths=st.lists(st.integers(1, MOST), min_size=1, max_size=32),
    alike=st.lists(st.sampled_from([0, 1, 16, 17, MOST]), max_size=31),
    jobs=st.integers(1, 3),
    longest_piece=st.sampled_from([0, 1, 7, 16, 50]),
    shares=st.booleans(),
    together=st.sampled_from([0, 64, 1000]),
    threads=st.integers(1, 4),
    seed=st.integers(0, 1 << 20),
)


@contextmanager
def computing(running: ModelEngine, draw: Draw) -> Iterator[None]:
    """An engine computes as is drawn; afterwards whole texts, by one thread."""
    torch.set_num_threads(draw.threads)
    running.cut_texts(draw.limits(running.model))
    try:
        yield
    finally:
        running.cut_texts(PieceLimits())
        torch.set_num_threads(1)


def assert_no_bit_differs(running: ModelEngine, draw: Draw) -> None:
    """Rows of each text among others are those of the text alone."""
    texts, work = draw.texts, work_of(running.model)
    parts = [texts[number :: draw.jobs] for number in range(draw.jobs)]
    parts = [part for part in parts if part]
    jobs = [Job(id=number, work=work, tokens=RaggedTokens.of(part)) for number, part in enumerate(parts)]
    with computing(running, draw):
        results = run_in_steps(running, jobs, draw.seed, most_units=20)
    for result, part in zip(results, parts, strict=True):
        for rows, text in zip(rows_by_text(running.model, result, part), part, strict=True):
            (alone,) = answers(running, [text])
            for ours, expected in zip(rows, alone, strict=True):
                assert np.array_equal(ours.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("examples", [8, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "number_format"), by_turns([(name,) for name in (*ENCODERS, *HEADS)]))
def test_a_text_has_the_same_bits_in_any_batch(name: str, number_format: str, examples: int) -> None:
    """Vectors, token vectors, sparse weights and logits: in batches, pieces, with shared beginnings, by any threads."""
    running = engine(name, number_format)
    assert card_of(running.model).bitwise_invariant

    @settings(deadline=None, max_examples=examples)
    @given(DRAWS)
    def check(draw: Draw) -> None:
        assert_no_bit_differs(running, draw)

    check()


METHODS = [
    ("tiny-bert", ScoringMethod.DENSE),
    ("tiny-bert", ScoringMethod.LATE_INTERACTION),
    ("tiny-colbert", ScoringMethod.LATE_INTERACTION),
    ("tiny-splade", ScoringMethod.SPARSE),
    ("tiny-bge-m3", ScoringMethod.SPARSE),
]


@pytest.mark.parametrize(("name", "method", "number_format"), by_turns(METHODS))
def test_a_score_has_the_same_bits_among_any_others(name: str, method: ScoringMethod, number_format: str) -> None:
    """Every query with every document in one step, in steps of three texts, and one query with one document."""
    running = engine(name, number_format)
    texts = random_ids([1 + 11 * number % 40 for number in range(24)])
    queries, documents = texts[:5], texts[5:]
    work, tokens = score(method, len(queries)), RaggedTokens.of(texts)
    whole, in_parts = (
        scores(run(running, [Job(id=1, work=work, tokens=tokens)], width)[0], len(documents)) for width in (None, 3)
    )
    assert np.array_equal(whole, in_parts)
    for query, document in ((0, 0), (2, 7), (4, len(documents) - 1)):
        alone = scores(ask(running, score(method, 1), [queries[query], documents[document]]))
        assert np.array_equal(alone, whole[query : query + 1, document : document + 1])


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-colbert"])
def test_a_pair_has_the_bits_of_a_matrix(name: str) -> None:
    """Dense and late-interaction scores of pairs, of which several share a step."""
    running = engine(name, "float32")
    texts = random_ids([3, 17, 30, 9, 25, 8])
    method = ScoringMethod.LATE_INTERACTION
    pairs = scores(ask(running, score(method, 3, Layout.PAIRS), texts))
    matrix = scores(ask(running, score(method, 3), texts), 3)
    assert np.array_equal(pairs.ravel(), matrix.diagonal())


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 100), st.integers(1, 130), st.integers(1, 70), st.sampled_from(NATIVE))
def test_products_of_any_sizes_equal_pytorchs(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    """Each number is the one that its own row and column give alone."""
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    ours, expected = product(x, weight), x.double() @ weight.double().t()
    assert (ours.double() - expected).abs().max() <= 1e-5 * inputs if dtype == torch.float32 else 1e-2 * inputs
    row, column = rows // 2, outputs // 2
    assert torch.equal(product(x[row:][:1], weight[column:][:1])[0, 0], ours[row, column])


def test_what_several_modules_share_stays_one() -> None:
    """A layer is packed once; numbers stay those of PyTorch but for rounding."""
    shared = nn.Linear(37, 37)
    layers, x = nn.Sequential(shared, nn.GELU("tanh"), nn.Sequential(shared)), torch.randn(100, 37)
    with torch.inference_mode():
        expected = layers(x)
        install_native([layers], LIBRARY)
        assert isinstance(layers[0], NativeLinear)
        assert layers[0] is layers[2][0]
        assert torch.allclose(layers(x), expected, atol=1e-5)
        assert torch.equal(layers(x)[7:8], layers(x[7:8]))


@pytest.mark.parametrize("name", ["tiny-deberta-v2", "tiny-t5"])
def test_layers_that_do_not_run_by_the_kernels_promise_nothing(name: str) -> None:
    model = engine(name, "float32").model
    assert not card_of(model).bitwise_invariant
    assert model.bits == "may differ in another batch: its layers do not run whole by the processor's kernels"


def test_texts_by_equal_length_promise_nothing(tmp_path: Path) -> None:
    """A class that does not run packed multiplies by PyTorch."""
    miniature.write(tmp_path, "longformer")
    assert not card_of(load(str(tmp_path), CPU, LoadOptions(max_tokens=MOST))).bitwise_invariant


def test_a_processor_without_kernels_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fingerprint is that of a processor with them: workers on both serve one model together."""
    with_kernels = engine("tiny-bert", "float32").model
    no_kernels(monkeypatch, "none are built")
    without = load(random_model("tiny-bert"), CPU, LoadOptions(max_tokens=MOST))
    assert not card_of(without).bitwise_invariant
    assert without.fingerprint == with_kernels.fingerprint


def _reason(model: Model) -> str:
    probes = Probes.of(model.encoder.model.config, MOST)
    return reason_for_other_bits(model.encoder, model.heads, probes, pieces=False)


def test_runs_find_a_model_that_mixes_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden states that depend on how many tokens a step has, far within what gates tolerate."""
    model = engine("tiny-bert", "float32").model
    assert not _reason(model)
    honest = NativeModel.forward
    monkeypatch.setattr(NativeModel, "forward", lambda native, batch: honest(native, batch) + 1e-7 * batch.total)
    assert _reason(model).startswith("its hidden states differ alone and among others by up to")


@pytest.mark.parametrize("part", [nn.Linear(64, 16), nn.Sigmoid()])
def test_what_pytorch_computes_in_a_head_is_named(part: nn.Module) -> None:
    """Even where the compared texts happen to have the same bits."""
    model = engine("tiny-bert", "float32").model
    heads = Heads(dense=DenseHead(("mean",), nn.Sequential(part), 16))
    assert _reason(replace(model, heads=heads)) == f"its head has a {type(part).__name__}, which PyTorch computes"
