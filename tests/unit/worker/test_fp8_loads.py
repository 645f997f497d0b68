"""What a load in fp8 makes of a model: how near it has to stay to itself, where it is refused, and its forms."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model import execution, loading, preparation
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import fp8
from gpu_worker.model.tune.compiled import CompiledEncoder
from gpu_worker.model.tune.encoder_forms import FormChoice, Forms
from gpu_worker.model.tune.fp8 import Fp8Linear, install, scaled, written_out
from gpu_worker.model.verify.closeness import Cosines, cosines
from gpu_worker.model.verify.gate import ProbeStates
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.settings import WorkerSettings
from shared.errors import ModelRefused
from shared.jobs import Job
from support import varlen_twin
from support.flaws import Flawed
from support.fp8_products import needs_products
from support.native import no_kernels
from support.tiny import DENSE, encode, run, tokens

CPU = Placement(device=torch.device("cpu"), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "told"),
    [
        ("cpu", None, torch.float32, "cpu has no fp8 products; CUDA devices of compute capability 8.9 and later have"),
        ("cuda:0", (8, 0), torch.bfloat16, "cuda:0 has no fp8 products"),
        ("cuda:0", (8, 9), torch.float16, "goes with --dtype bfloat16, this is float16"),
        ("cuda:0", (9, 0), torch.bfloat16, ""),
    ],
)
def test_devices_that_have_none_are_refused(
    device: str, capability: tuple[int, int] | None, dtype: torch.dtype, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that says what is missing."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    placement = Placement(device=torch.device(device), dtype=dtype)
    if not told:
        fp8.check_device(placement)
        return
    with pytest.raises(ModelRefused, match=told):
        fp8.check_device(placement)


def test_a_processor_refuses_the_setting() -> None:
    """Before it reads a model."""
    chosen = WorkerSettings.read(["--linear=fp8"])
    with pytest.raises(ModelRefused, match="--linear = 'fp8': cpu has no fp8 products"):
        load("no such model", Placement.choose("cpu"), linear=chosen.linear)
    assert WorkerSettings.read([]).linear == "auto"


@pytest.fixture(autouse=True)
def by_the_twin() -> Iterator[None]:
    """A load rounds on this processor, by the twin, and takes the plainest attention."""
    with pytest.MonkeyPatch.context() as patch:
        no_kernels(patch)
        patch.setattr(fp8, "install", partial(install, product=written_out))
        patch.setattr(execution.attention_choice, "choose", lambda *_, **__: OneByOne())
        yield


@cache
def loaded(name: str, asked: loading.Linear) -> Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "check_device", lambda _: None)
        return load(f"random:{name}", CPU, linear=asked, max_tokens=64)


def vectors(model: Model) -> np.ndarray:
    result = run(ModelEngine(model), [Job(id=1, work=encode(DENSE), tokens=tokens(5, 40, 1, 17))])[0]
    assert result.dense is not None
    return np.frombuffer(result.dense.data, dtype="<f4").reshape(4, -1)


def test_a_load_in_fp8() -> None:
    """Other numbers, near the ones before, another fingerprint; the card and the log say so; a smaller model."""
    usual, eight = loaded("tiny-roberta", "auto"), loaded("tiny-roberta", "fp8")
    found = (vectors(usual) * vectors(eight)).sum(axis=1)
    assert found.min() > 0.97
    assert found.max() < 0.9999
    assert usual.fingerprint != eight.fingerprint
    assert card_of(eight).linear == "fp8 by row"
    assert card_of(eight).dtype == "bfloat16"
    [told] = eight.findings
    assert told.startswith("18 linear layers in fp8 by row, 0 left as they are: cosine 0.99")
    rounded_weights = sum(each.rounded.numel() for each in eight.encoder.model.modules() if isinstance(each, Fp8Linear))
    scales = sum(each.scales.numel() for each in eight.encoder.model.modules() if isinstance(each, Fp8Linear))
    assert usual.weight_bytes - eight.weight_bytes == rounded_weights - 4 * scales


def test_what_rounding_changes_too_much_is_refused() -> None:
    """With the figures: a decoder with wild random weights."""
    with pytest.raises(ModelRefused, match=r"change it too much: cosine 0\.9\d+ over tokens, .* wanted are 0\.99"):
        loaded("tiny-llama", "fp8")


def test_logits_are_judged_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a classifier that passes, and does not by a bound above what rounding leaves."""
    assert loaded("tiny-classifier", "fp8").findings[-1].startswith("logits of rounded layers: cosine 0.99")
    monkeypatch.setattr(preparation, "LEAST_COSINE", 0.9999)
    with pytest.raises(ModelRefused, match=r"change its logits too much: cosine 0\.99\d+, wanted is 0\.9999"):
        loaded.__wrapped__("tiny-classifier", "fp8")


@needs_products
def test_rounded_layers_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for all batches, with the operator that CUDA runs; the same numbers."""
    varlen_twin.install()
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: Varlen())
    monkeypatch.setattr(fp8, "install", partial(install, product=scaled))
    encoder = loaded.__wrapped__("tiny-roberta", "fp8").encoder
    counter = CompileCounter()
    compiled = CompiledEncoder(encoder, counter)
    for lengths in ([3, 5, 9], [2, 7], [1, 1, 4, 30], [17]):
        batch = RaggedBatch.pack([np.full(each, 77, dtype=np.int32) for each in lengths], CPU.device, encoder.uncounted)
        with torch.inference_mode():
            assert torch.equal(compiled.run_compiling(batch), encoder(batch))
    assert counter.frame_count == 1
    torch.compiler.reset()


def played(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What stands for a captured graph."""
    work()
    return work


def stale(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A graph that never computes again."""
    result = work()
    return lambda: result


@pytest.mark.parametrize(("record", "way"), [(played, "varlen, compiled layers, "), (stale, "varlen, compiled layers")])
def test_forms_are_judged_by_the_rounded_encoder(
    record: Callable[[Callable[[], Tensor]], Callable[[], Tensor]], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled layers and graphs serve; a graph that errs does not, though rounding is excused."""
    varlen_twin.install()
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: Varlen())
    monkeypatch.setattr(fp8, "check_device", lambda _: None)
    faster = (0.5**each for each in range(1000))

    def seconds(run: Callable[[], object]) -> float:
        run()
        return next(faster)

    stand_ins = {"backend": "eager", "recorder": lambda: record, "seconds": seconds}
    monkeypatch.setattr(loading, "FormChoice", partial(FormChoice, **stand_ins))
    model = load("random:tiny-roberta", CPU, max_tokens=64, linear="fp8", forms=Forms(step_tokens=64))
    torch.compiler.reset()
    assert model.encoder.description.startswith(way)
    assert model.encoder.description.endswith("graphs") == (record is played)
    assert "cosine" in model.findings[0]


class Strong(OneByOne):
    """An attention that is a little off, by less than rounding is."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        return super().__call__(query, key, value, batch, terms) * 1.03


@pytest.mark.parametrize("attention", [Strong(), Flawed("mixes sequences")], ids=["a little off", "mixes sequences"])
def test_rounding_excuses_no_mistake(attention: OneByOne, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact gate comes first: the packed run does not pass it, and the other way serves."""
    monkeypatch.setattr(execution.attention_choice, "choose", lambda *_, **__: attention)
    model = loaded.__wrapped__("tiny-bert", "fp8")
    assert "it does not run among other texts as it runs alone" in model.unpacked_reason
    assert model.encoder.description.startswith("equal length")


def test_cosines_of_nothing() -> None:
    """Two rows of zeros are alike, one of them alone is not; NaN is no vector."""
    zero, one = torch.zeros(1, 4), torch.ones(1, 4)
    assert cosines(torch.cat([zero, zero, one]), torch.cat([zero, one, one])).tolist() == pytest.approx([1.0, 0.0, 1.0])
    good = ProbeStates(
        hidden=torch.ones(3, 4), exact=torch.ones(3, 4), reference=torch.ones(3, 4), numbers=[0, 1], lengths=[1, 2]
    )
    assert Cosines.of(good).near_enough
    for bad in (float("nan"), float("inf")):
        hidden = torch.ones(3, 4)
        hidden[1, 1] = bad
        assert not Cosines.of(replace(good, hidden=hidden)).near_enough


@pytest.mark.slow
def test_a_real_model_in_fp8() -> None:
    """MiniLM passes its gate, and its vectors stay near."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "check_device", lambda _: None)
        usual, eight = (load("minilm", CPU, linear=asked) for asked in ("auto", "fp8"))  # type: ignore[arg-type]
    assert (vectors(usual) * vectors(eight)).sum(axis=1).min() > 0.985
