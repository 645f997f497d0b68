"""Fast attention equals the obvious twin; the gate catches what is wrong."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import equal_runs
from gpu_worker.kernels.attention import interface as module
from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.model.encoder.encoder import uncounted_id_of
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.verify.tolerances import Expected, exact_states
from gpu_worker.ragged.batch import RaggedBatch
from harness.random_models import synthetic
from shared.errors import ModelRefused
from support.biases import louder, nearer
from support.flaws import Flawed, counted_on
from support.tiny import referee

CPU = torch.device("cpu")
TINY = sorted(name for name in synthetic.SHAPES if name.startswith("tiny-"))


RECENT = [f"tiny-{name}" for name in ("nomic-bert", "gte", "jina-v3", "eurobert") if f"tiny-{name}" in TINY]
BIDIRECTIONAL = [name for name in TINY if name.endswith("-bidirectional")]


def batch_of(lengths: list[int], vocabulary: int = 900, tails: Sequence[int] = ()) -> RaggedBatch:
    generator = np.random.default_rng(len(lengths))
    texts = [generator.integers(5, vocabulary, length, dtype=np.int32) for length in lengths]
    return RaggedBatch.pack(texts, CPU, tails=tails)


TERMS = st.builds(
    AttentionTerms,
    scale=st.just(0.25),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.just(5.0),
    bias=st.sampled_from([None, nearer, louder]),
)


SEQUENCES = st.lists(st.integers(1, 20).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length - 1))))


@settings(deadline=None, max_examples=60)
@given(SEQUENCES.filter(bool), TERMS, st.sampled_from([1, 2, 4]), st.integers(1, 2000))
def test_equal_runs_equal_one_by_one(
    sequences: list[tuple[int, int]], terms: AttentionTerms, groups: int, block: int
) -> None:
    """Any lengths, unattended tails, causality, window, softcap, bias, grouped heads, sorted or not; blocks that hold
    from many sequences to less than a row of one head."""
    torch.manual_seed(0)
    batch = batch_of([length for length, _ in sequences], tails=[tail for _, tail in sequences])
    query = torch.randn(batch.total, 4, 16).transpose(0, 1)
    key, value = (torch.randn(batch.total, 4 // groups, 16).transpose(0, 1) for _ in range(2))
    expected = OneByOne()(query, key, value, batch, terms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_runs, "BLOCK_SCORES", block)
        ours = EqualRuns()(query, key, value, batch, terms)
    # Far behind a window nothing is attended to: nobody promises what comes of it, but that it is a number.
    defined = torch.isfinite(expected).all(dim=2)
    assert torch.allclose(ours[defined], expected[defined], atol=2e-6)
    assert defined.all() or (batch.attended < batch.lengths).any()
    assert torch.isfinite(ours).all()


@pytest.mark.parametrize("name", TINY)
def test_every_family_runs_unattended_tails(name: str) -> None:
    """As its own attention does with a mask; DeBERTa's masks rows as well as keys, so it is refused."""
    module.register()
    config, _ = synthetic.shape_of(name)
    model = synthetic.build(config, "encoder", Placement(device=CPU, dtype=torch.float32)).eval()
    first = uncounted_id_of(model)
    reference = referee(model, unattended=True)
    if name != "tiny-deberta-v2":
        reference.check(PackedEncoder(model, OneByOne(), first))
        reference.check(PackedEncoder(model, EqualRuns(), first))
    wrong = OneByOne() if name == "tiny-deberta-v2" else Flawed("attends to tails")
    with pytest.raises(ModelRefused, match="hidden states differ"):
        reference.check(PackedEncoder(model, wrong, first))


@pytest.mark.parametrize("name", TINY)
def test_positions_start_where_the_model_starts_them(name: str) -> None:
    """The gate gives the model's own run the positions that the packed run has, so it could not see a wrong start."""
    config, _ = synthetic.shape_of(name)
    model = synthetic.build(config, "encoder", Placement.choose("cpu", "float32")).eval()
    ids = torch.arange(10, 30)[None]
    with torch.inference_mode():
        theirs = model(input_ids=ids).last_hidden_state
        positions = RaggedBatch.pack([ids[0].int().numpy()], CPU, uncounted_id_of(model)).positions
        ours = model(input_ids=ids, position_ids=positions).last_hidden_state
    assert torch.equal(theirs, ours)


FLAWS = [
    ("tiny-bert", "mixes sequences"),
    ("tiny-qwen3", "mixes sequences"),
    ("tiny-qwen3", "flips causality"),
    ("tiny-bert", "flips causality"),
    ("tiny-mistral", "ignores the window"),
    ("tiny-mistral", "window off by one"),
    ("tiny-modernbert", "window off by one"),
    ("tiny-gemma3", "window off by one"),
    ("tiny-roberta", "positions from zero"),
    ("tiny-bert", "positions not restarted"),
    ("tiny-mpnet", "mixes sequences"),
    ("tiny-mpnet", "ignores the bias"),
    ("tiny-mpnet", "positions from zero"),
    ("tiny-deberta-v2", "mixes sequences"),
    ("tiny-deberta-v2", "ignores the bias"),
    ("tiny-embeddinggemma", "flips causality"),
    ("tiny-embeddinggemma", "window off by one"),
    ("tiny-mistral-bidirectional", "window off by one"),
    *((name, "flips causality") for name in BIDIRECTIONAL),
    *((name, "mixes sequences") for name in (*RECENT, *BIDIRECTIONAL)),
]
FIRST = {flaw: name for name, flaw in reversed(FLAWS)}
WRONG = [
    pytest.param(name, flaw, dtype, marks=pytest.mark.slow if dtype == torch.bfloat16 and FIRST[flaw] != name else ())
    for name, flaw in FLAWS
    for dtype in (torch.float32, torch.bfloat16)
]
"""Each mistake of each family in float32, each mistake once in bfloat16; all by `make test-slow`."""


@pytest.mark.parametrize(("name", "flaw", "dtype"), WRONG)
def test_the_gate_refuses_a_wrong_run(
    name: str, flaw: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: each mistake that a packed run can make, after an honest run has passed."""
    module.register()
    placement = Placement(device=CPU, dtype=dtype)
    config, _ = synthetic.shape_of(name)
    model = synthetic.build(config, "encoder", placement).eval()
    first = uncounted_id_of(model)
    reference = referee(model)
    reference.check(PackedEncoder(model, Flawed("none"), first))
    if flaw == "positions not restarted":
        honest = RaggedBatch.pack

        def running_on(*arguments: object, **options: object) -> RaggedBatch:
            batch = honest(*arguments, **options)  # type: ignore[arg-type]
            return counted_on(batch)

        monkeypatch.setattr(RaggedBatch, "pack", running_on)
    with pytest.raises(ModelRefused, match=r"hidden states differ|away from float32"):
        reference.check(PackedEncoder(model, Flawed(flaw), None if flaw == "positions from zero" else first))


def test_numbers_that_are_none_are_refused() -> None:
    """NaN compares as false with everything; the verdict must not."""
    exact = torch.zeros(2, 2)
    expected = Expected(exact=exact, rows=exact)
    assert not exact_states(torch.full((2, 2), float("nan")), expected, torch.float32).near
    assert exact_states(exact, expected, torch.float32).near
