"""With --same-bits a text's rows and scores have the same bits alone and in any batch and order, in every format."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.cpu.fixed_order import FixedOrder
from gpu_worker.kernels.cpu.products import product
from gpu_worker.kernels.maxsim import reference
from gpu_worker.kernels.maxsim.comparison import Comparison, Texts
from gpu_worker.kernels.maxsim.native import NativeMaxSim
from gpu_worker.model.card import card_of
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import same_bits
from gpu_worker.model.tune.same_bits import FixedLinear
from gpu_worker.model.verify import bits
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.settings import WorkerSettings
from harness.random_models import miniature
from shared.errors import ModelRefused
from shared.jobs import Classify, Encode, Job, JobResult
from shared.ragged import RaggedTokens
from shared.vectors import Layout, ScoringMethod
from support.native import LIBRARY, needs_kernels, no_kernels
from support.random_models import random_model
from support.tiny import DENSE, MULTI, SPARSE, ask, dense_rows, encode, random_ids, run, score, scores, sparse_rows
from support.tiny import token_rows as rows_of_tokens

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("one_thread"),
]
FORMATS = [str(dtype)[6:] for dtype in sorted(LIBRARY.formats, key=str)] + ["int8"] * (not LIBRARY.missing)
NATIVE = sorted(LIBRARY.formats, key=str)
MODELS = ["tiny-bert", "tiny-qwen3", "tiny-modernbert", "tiny-deberta-v2", "tiny-t5", "tiny-gemma2"]
HEADS = ["tiny-splade", "tiny-colbert", "tiny-bge-m3", "tiny-cross-encoder", "tiny-token-classifier", "tiny-yes-no"]
Ids = list[list[int]]


@cache
def engine(name: str, number_format: str) -> ModelEngine:
    """An engine whose texts have the same bits."""
    dtype, linear = ("float32", "int8") if number_format == "int8" else (number_format, "auto")
    placement = Placement.choose("cpu", dtype)  # type: ignore[arg-type]
    name = name if name == "minilm" else random_model(name)
    return ModelEngine(load(name, placement, max_tokens=72, linear=linear, same_bits=True))  # type: ignore[arg-type]


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


def assert_same_bits(running: ModelEngine, texts: Ids, order: list[int]) -> None:
    together = answers(running, [texts[number] for number in order])
    for place in {0, len(order) // 2, len(order) - 1}:
        (alone,) = answers(running, [texts[order[place]]])
        for ours, expected in zip(together[place], alone, strict=True):
            assert np.array_equal(ours.view(np.int32), expected.view(np.int32))


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=64)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("name", [*MODELS, *HEADS])
def test_a_text_has_the_same_bits_among_any_others(name: str, number_format: str) -> None:
    """Vectors, token vectors, sparse weights and logits, through the engine."""
    running = engine(name, number_format)

    @settings(deadline=None, max_examples=12)
    @given(LENGTHS, st.randoms(use_true_random=False))
    def check(lengths: list[int], random: object) -> None:
        order = list(range(len(lengths)))
        random.shuffle(order)  # type: ignore[attr-defined]
        assert_same_bits(running, random_ids(lengths), order)

    check()


@pytest.mark.parametrize("number_format", FORMATS)
def test_minilm_has_the_same_bits_among_any_others(number_format: str) -> None:
    """The real weights, whole layers and all."""
    running = engine("minilm", number_format)
    texts = random_ids([1 + 7 * number % 70 for number in range(40)], vocabulary=30_000)
    generator = np.random.default_rng(0)
    for count in (1, 2, 3, 17, 40):
        assert_same_bits(running, texts, generator.permutation(40)[:count].tolist())


@pytest.mark.parametrize("name", [*MODELS, *HEADS])
def test_known_models_run_packed(name: str) -> None:
    """The promise does not cost them their batches."""
    assert not engine(name, "float32").model.unpacked_reason


METHODS = [
    ("tiny-bert", ScoringMethod.DENSE),
    ("tiny-bert", ScoringMethod.LATE_INTERACTION),
    ("tiny-colbert", ScoringMethod.LATE_INTERACTION),
    ("tiny-splade", ScoringMethod.SPARSE),
    ("tiny-bge-m3", ScoringMethod.SPARSE),
]


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize(("name", "method"), METHODS)
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


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3"])
@pytest.mark.parametrize("number_format", FORMATS)
def test_the_number_of_threads_changes_no_bit(name: str, number_format: str) -> None:
    """One, two and three, over texts that all of them share."""
    running, texts = engine(name, number_format), random_ids([40, 3, 25, 64, 64, 1, 33] * 3)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(answers(running, texts))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            assert all(np.array_equal(mine, their) for mine, their in zip(ours, theirs, strict=True))


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


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "tanh in place": lambda x: x.clone().tanh_(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "mm": lambda x: x @ x.new_ones(x.shape[1], 3).cumsum(0),
    "linear": lambda x: F.linear(x, x.new_ones(5, x.shape[1]).cumsum(1), x.new_ones(5)),
    "bmm": lambda x: torch.bmm(x[None].expand(2, -1, -1), x.new_ones(2, x.shape[1], 3))[1],
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x.new_ones(4, x.shape[1])),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_have_one_order(name: str, threads: int) -> None:
    """A row alone, and rows that begin and end anywhere, in every format, also where threads share them."""
    function, before = FUNCTIONS[name], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype, width in ((dtype, width) for dtype in NATIVE for width in (1, 37, 64, 420)):
            torch.manual_seed(width)
            x = torch.randn(400, width).to(dtype)
            with torch.inference_mode(), FixedOrder():
                alone = torch.cat([function(x[row : row + 1].clone()) for row in range(60)])
                for first, last in ((0, 1), (0, 2), (3, 20), (0, 60), (7, 60), (1, 400), (0, 400)):
                    ours = function(x[first:last].clone())[: 60 - first]
                    assert torch.equal(ours, alone[first : first + len(ours)])
            plain = function(x.double()[:60]).double()
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            assert (alone - plain).abs().max() <= tolerance * max(1.0, float(plain.abs().max()))
    finally:
        torch.set_num_threads(before)


def test_activations_of_layers_need_no_look() -> None:
    """They are replaced, so that a model without other operators to change runs without looking at each of them."""
    layers, order = nn.Sequential(nn.Linear(37, 21), nn.GELU("tanh"), nn.Sequential(nn.SiLU())), FixedOrder()
    x = torch.randn(100, 37)
    expected = layers(x)
    same_bits.install([layers])
    same_bits.install([layers])  # changes nothing more
    with torch.inference_mode():
        alone = torch.cat([layers(x[row : row + 1]) for row in range(len(x))])
        with order:
            assert torch.equal(layers(x), alone)
        assert torch.equal(layers(x), alone)
    assert torch.allclose(alone, expected, atol=1e-5)
    assert not order.used


def test_an_operator_without_an_order_is_refused() -> None:
    """By its name."""
    with torch.inference_mode(), FixedOrder(), pytest.raises(ModelRefused, match=r"aten.convolution.* no fixed order"):
        torch.conv1d(torch.randn(1, 4, 9), torch.randn(4, 4, 3))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=5), st.lists(st.integers(0, 90), min_size=1, max_size=12))
def test_maxsim_equals_its_twin(query_lengths: list[int], document_lengths: list[int]) -> None:
    """Each score has the bits that its query and its document give alone."""
    torch.manual_seed(0)
    queries, documents = torch.randn(sum(query_lengths), 24), torch.randn(sum(document_lengths), 24)
    kernel = NativeMaxSim(LIBRARY)
    sides = [Texts.end_to_end(np.array(lengths)) for lengths in (query_lengths, document_lengths)]
    whole = Comparison(queries=sides[0], documents=sides[1], layout=Layout.MATRIX)
    ours, expected = kernel(queries, documents, [whole]), reference.compare(queries, documents, [whole])
    assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-4)
    last = Comparison(queries=sides[0].part(0, 1), documents=whole.documents.part(0, 1), layout=Layout.PAIRS)
    assert torch.equal(kernel(queries, documents, [last])[0], ours[0])


def test_layers_keep_their_shapes() -> None:
    """Leading dimensions of any number, sizes that the kernels do not take, a layer without a bias."""
    layer, x = nn.Linear(37, 5, bias=False), torch.randn(2, 3, 37)
    with torch.inference_mode():
        assert torch.allclose(FixedLinear(layer)(x), layer(x), atol=1e-5)


def test_a_class_that_cannot_run_packed_runs_one_text_at_a_time(tmp_path: Path) -> None:
    """Its own operators see one text, so its bits cannot depend on others."""
    miniature.write(tmp_path, "longformer")
    model = load(str(tmp_path), Placement.choose("cpu", "float32"), max_tokens=72, same_bits=True)
    assert model.encoder.description.startswith("one text at a time")
    assert_same_bits(ModelEngine(model), random_ids([5, 5, 17, 5, 33, 5], vocabulary=100), [3, 2, 0, 4, 1, 5])


def test_card_and_fingerprint_tell_the_promise() -> None:
    """Workers with and without it, which give other bits, are told apart; so are formats."""
    with_it = engine("tiny-bert", "float32").model
    without = load(random_model("tiny-bert"), Placement.choose("cpu", "float32"), max_tokens=72)
    assert card_of(with_it).linear.endswith(", same bits")
    assert "same bits" not in card_of(without).linear
    assert len({with_it.fingerprint, without.fingerprint, engine("tiny-bert", FORMATS[0]).model.fingerprint}) >= 2
    assert with_it.fingerprint != without.fingerprint


def test_the_setting_is_off() -> None:
    """It costs speed."""
    assert not WorkerSettings.read([]).same_bits
    assert WorkerSettings.read(["--same-bits"]).same_bits


def test_what_cannot_promise_it_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it reads a model: an accelerator, a format that the kernels have not, a processor without kernels."""
    half = Placement(device=torch.device("cpu"), dtype=torch.float16)
    with pytest.raises(ModelRefused, match="needs the processor's kernels: they have no float16 here"):
        load("no such model", half, same_bits=True)
    with pytest.raises(ModelRefused, match="--same-bits: on cuda products are chosen by the size of a step"):
        same_bits.check(Placement(device=torch.device("cuda"), dtype=torch.bfloat16))
    no_kernels(monkeypatch, "none are built")
    with pytest.raises(ModelRefused, match="--same-bits needs the processor's kernels: none are built"):
        load("no such model", Placement.choose("cpu", "float32"), same_bits=True)


def test_the_gate_finds_a_class_that_mixes_texts() -> None:
    """Here its last hidden states depend on how many tokens a step has."""
    model = load(random_model("tiny-bert"), Placement.choose("cpu", "float32"), max_tokens=72, same_bits=True)
    probes = Probes.of(model.encoder.model.config, 72)
    bits.check(model.encoder, probes)

    class Mixing(Encoder):
        def __call__(self, batch: RaggedBatch) -> Tensor:
            return model.encoder(batch) + 1e-7 * batch.total

    mixing = Mixing(model.encoder.model, uncounted=None, token_types=model.encoder.token_types, width=64)
    with pytest.raises(ModelRefused, match="its hidden states differ alone and among others by up to"):
        bits.check(mixing, probes)
