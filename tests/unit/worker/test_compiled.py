"""Compiled layers without a device: one graph a kind of layer and all batches; all else runs as it is written."""

from itertools import count

import pytest
import torch

from gpu_worker.model.tune import graphs
from gpu_worker.model.tune.compiled import CompiledEncoder
from gpu_worker.model.tune.encoder_forms import FormChoice, Forms
from gpu_worker.model.tune.graph_sizes import buckets
from gpu_worker.ragged import batch as ragged_batch
from gpu_worker.ragged import upload
from support.forms import KINDS, SIZES, Counting, Playing, batch, families, packed_encoder, reference_of

pytestmark = pytest.mark.usefixtures("on_a_processor")


@families("tiny-modernbert", "tiny-qwen3")
def test_one_graph_for_each_kind_of_layer_and_all_batches(name: str) -> None:
    """Whatever the lengths, counts and longest texts; the same numbers, and the layers are left as they were."""
    encoder, counting = packed_encoder(name), Counting()
    compiled = CompiledEncoder(encoder, counting)
    batches = [batch(encoder, lengths) for lengths in SIZES]
    compiled.compile(batches[:1])
    layers, counting.runs = counting.runs, 0
    with torch.inference_mode():
        for each in batches:
            assert torch.equal(compiled(each), encoder(each))
    assert counting.graphs == KINDS.get(name, 1)
    assert counting.runs == layers * len(batches)


def test_a_graph_has_the_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the tensors of a batch are views of one buffer, and what is compiled for those takes no others."""
    encoder, counting = packed_encoder("tiny-bert"), Counting()
    monkeypatch.setattr(upload, "to_device", lambda host, _: host.clone())
    for module in (ragged_batch, graphs):
        monkeypatch.setattr(module, "Upload", lambda _: upload.Upload(torch.device("xpu")))
    compiled = CompiledEncoder(encoder, counting)
    compiled.compile([batch(encoder, [16] * 16)])
    layers, counting.runs = counting.runs, 0
    with torch.inference_mode():
        for size in buckets(256, 64):
            counting.runs = 0
            graph = graphs.Graph(size, compiled, Playing())
            assert counting.runs == layers
            each = batch(encoder, size.filled)
            assert torch.equal(graph(each), encoder(each))
    assert counting.graphs == 1


def test_what_was_not_compiled_runs_as_it_is_written() -> None:
    """Nobody waits for a compiler: batches of one token, of two launches, with tails."""
    encoder, counting = packed_encoder("tiny-bert"), Counting()
    compiled = CompiledEncoder(encoder, counting)
    compiled.compile([batch(encoder, [3, 5])])
    others = [batch(encoder, [1]), batch(encoder, [*([2] * 60), 400]), batch(encoder, [4, 9], [1, 3])]
    with torch.inference_mode():
        for each in others:
            assert torch.equal(compiled(each), encoder(each))
    assert counting.graphs == 1
    compiled.compile(others[1:])
    assert counting.graphs == 3
    counting.runs = 0
    with torch.inference_mode():
        for each in others[1:]:
            compiled(each)
    assert counting.runs == 2 * 3


def test_windows_are_compiled_though_tails_beside_them_are_not() -> None:
    """A late-interaction model with windows: its documents have no tails, its queries run as the layers are written."""
    reference, encoder = reference_of("tiny-modernbert", positions=200, unattended=True, limit=200)
    counting, slower = Counting(), (0.9**number for number in count())
    form = FormChoice(
        encoder,
        reference,
        Forms(step_tokens=64, graphs=False),
        longest=200,
        tails=True,
        backend=counting,
        seconds=lambda run: (run(), next(slower))[1],
    )
    assert form.encoder.description == "varlen, compiled layers"
    assert form.findings[0].startswith("batches with unattended tails run as the layers are written: ")
    assert counting.graphs >= 2
    with torch.inference_mode():
        for lengths, tails in (([5, 40], [2, 0]), ([5, 40], None)):
            each = batch(encoder, lengths, tails)
            assert torch.equal(form.encoder(each), encoder(each))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor imports what warns
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3", "tiny-modernbert"])
def test_inductor_itself(name: str) -> None:
    """The compiler that serves, on a processor: within rounding of the layers as they are written.

    Linear layers are PyTorch's, as on an accelerator: inductor compiles no packed ones for batches of any size.
    """
    _, encoder = reference_of(name, positions=640, limit=640)
    compiled = CompiledEncoder(encoder)
    batches = [batch(encoder, lengths) for lengths in SIZES]
    compiled.compile(batches[:1])
    with torch.inference_mode():
        for each in batches:
            assert torch.allclose(compiled(each), encoder(each), atol=2e-5)
