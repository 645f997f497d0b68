"""On CUDA: linear layers in fp8 against their twin, float16 where files ask."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.loop.interface import JobSlice
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune.encoder_forms import Forms
from gpu_worker.model.tune.fp8 import CAPABLE, Fp8Linear, check_device, written_out
from gpu_worker.startup.warm_up import warm_up_jobs
from shared.errors import ModelRefused
from shared.jobs import Encode, Job
from shared.ragged import RaggedTokens
from shared.vectors import OutputKind
from support.tiny import write_encoder

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
BFLOAT16 = torch.bfloat16


@pytest.fixture
def fp8(cuda: torch.device) -> torch.device:
    """A device with products in fp8."""
    if torch.cuda.get_device_capability(cuda) < CAPABLE:
        pytest.skip("this device has no fp8 products")
    return cuda


def layer(device: torch.device, inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).to(device, BFLOAT16).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(16, 16), (64, 48), (1024, 3072), (4096, 1024)])
@pytest.mark.parametrize("tokens", [1, 2, 33, 1000, 8192])
@torch.inference_mode()
def test_the_operator_equals_its_twin(fp8: torch.device, tokens: int, sizes: tuple[int, int], bias: bool) -> None:
    """For any number of tokens: within a rounding of the output, and of a sum of so many products."""
    linear, x = layer(fp8, *sizes, bias=bias), torch.randn(1, tokens, sizes[0], device=fp8, dtype=BFLOAT16)
    expected, found = Fp8Linear(linear, written_out)(x).float(), Fp8Linear(linear)(x).float()
    assert found.shape == (1, tokens, sizes[1])
    assert torch.allclose(found, expected, rtol=2**-6, atol=2e-3 * float(expected.abs().max()))
    exact = linear(x).float()
    assert torch.cosine_similarity(found, exact, dim=-1).mean() > 0.998


@torch.inference_mode()
def test_what_is_not_finite_stays_in_its_row(fp8: torch.device) -> None:
    """Rows that fill a graph's batch up may hold anything."""
    rounded, x = Fp8Linear(layer(fp8, 256, 512)), torch.randn(300, 256, device=fp8, dtype=BFLOAT16)
    expected = rounded(x)
    x[7], x[100, 3], x[250:] = float("nan"), float("inf"), float("nan")
    found = rounded(x)
    spoilt = torch.zeros(300, dtype=torch.bool, device=fp8)
    spoilt[[7, 100, *range(250, 300)]] = True
    assert torch.equal(found[~spoilt], expected[~spoilt])
    assert torch.isnan(found[spoilt]).all()


@cache
def loaded(linear: str, forms: bool = False) -> Model:
    chosen = Forms(step_tokens=512) if forms else None
    placement = Placement.choose(DEVICE, "bfloat16")
    return load("random:tiny-roberta", placement, forms=chosen, linear=linear)  # type: ignore[arg-type]


def dense(model: Model) -> np.ndarray:
    ids = np.random.default_rng(0).integers(5, 900, 100)
    tokens = RaggedTokens.of([ids[:60].tolist(), ids[60:].tolist(), ids[:1].tolist()])
    work = Encode(outputs=frozenset({OutputKind.DENSE}), normalize=True, normalize_tokens=True)
    engine = ModelEngine(model)
    progress = engine.open(Job(id=1, work=work, tokens=tokens))
    engine.launch([JobSlice(job=progress, start=0, stop=3)]).collect()
    result = progress.result().dense
    assert result is not None
    return np.frombuffer(result.data, dtype="<f4").reshape(3, -1)


@pytest.mark.usefixtures("fp8")
@pytest.mark.parametrize("forms", [False, True], ids=["as written", "compiled and captured"])
def test_a_model_in_fp8(forms: bool) -> None:
    """It passes its gate, gives vectors near those in bfloat16, and tells."""
    model = loaded("fp8", forms)
    assert card_of(model).linear == "fp8 by row"
    assert model.fingerprint != loaded("auto").fingerprint
    assert [
        each
        for each in model.findings
        if each.startswith("18 linear layers in fp8 by row, 0 left") and "cosine" in each
    ]
    assert (dense(model) * dense(loaded("auto"))).sum(axis=1).min() > 0.97


@pytest.mark.usefixtures("fp8")
def test_a_step_in_fp8_waits_for_its_results_only() -> None:
    """Neither scales nor sums come back to the host."""
    engine = ModelEngine(loaded("fp8"))
    for mode in ("default", "error"):  # the first round is for what is done once
        progresses = [engine.open(job) for job in warm_up_jobs(engine.model)]
        torch.cuda.set_sync_debug_mode(mode)
        try:
            engine.launch([JobSlice(job=each, start=0, stop=len(each.costs)) for each in progresses]).collect()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_device_without_fp8_says_so(cuda: torch.device) -> None:
    placement = Placement.choose(DEVICE, "bfloat16")
    if torch.cuda.get_device_capability(cuda) >= CAPABLE:
        check_device(placement)
        return
    with pytest.raises(ModelRefused, match="has no fp8 products"):
        check_device(placement)


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float16), ("bfloat16", BFLOAT16)])
def test_files_may_ask_for_float16(dtype: str, expected: torch.dtype, tmp_path: Path) -> None:
    """A model whose config.json names it runs in it, and passes its gate there."""
    write_encoder(tmp_path, "tiny-bert")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float16"}))
    model = load(str(tmp_path), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    assert model.encoder.dtype == expected
    assert card_of(model).dtype == str(expected).removeprefix("torch.")
