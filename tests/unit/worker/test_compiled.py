"""Compiled layers without a device: compiled once a kind of layer, for all batches."""

import pytest
import torch

from gpu_worker.device import transfer
from gpu_worker.model.tune import graphs
from gpu_worker.model.tune.graphs import compiled_run, ladder
from gpu_worker.ragged import batch as ragged_batch
from support.graphs import KINDS, SIZES, Counting, Playing, batch, families, packed_encoder, reference_of

pytestmark = pytest.mark.usefixtures("on_a_processor")


@families("tiny-modernbert", "tiny-qwen3")
def test_once_for_each_kind_of_layer_and_all_batches(name: str) -> None:
    """Whatever the lengths, counts and longest texts; the same numbers, and the layers are left as they were."""
    encoder, counting = packed_encoder(name), Counting()
    compiled = compiled_run(encoder, counting)
    batches = [batch(encoder, lengths) for lengths in SIZES]
    with torch.inference_mode():
        compiled(batches[0])
        layers, counting.runs = counting.runs, 0
        for each in batches:
            assert torch.equal(compiled(each), encoder(each))
    assert counting.graphs == KINDS.get(name, 1)
    assert counting.runs == layers * len(batches)


def test_a_graph_has_the_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the tensors of a batch are views of one buffer, and what is compiled for those takes no others."""
    encoder, counting = packed_encoder("tiny-bert"), Counting()
    monkeypatch.setattr(transfer, "to_device", lambda host, _: host.clone())
    for module in (ragged_batch, graphs):
        monkeypatch.setattr(module, "Upload", lambda _: transfer.Upload(torch.device("xpu")))
    compiled = compiled_run(encoder, counting)
    with torch.inference_mode():
        compiled(batch(encoder, [16] * 16))
        layers = counting.runs
        for size in ladder(256, 60):
            counting.runs = 0
            graph = graphs.Graph(size, encoder, compiled, Playing())
            assert counting.runs == layers
            each = batch(encoder, [size.tokens // size.sequences] * size.sequences)
            assert torch.equal(graph(each), encoder(each))
    assert counting.graphs == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor imports what warns
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3", "tiny-modernbert"])
def test_inductor_itself(name: str) -> None:
    """The compiler that serves, on a processor: within rounding of the layers as they are written.

    Linear layers are PyTorch's, as on an accelerator: inductor compiles no packed ones for batches of any size.
    """
    _, encoder = reference_of(name, positions=640, limit=640)
    compiled = compiled_run(encoder)
    batches = [batch(encoder, lengths) for lengths in SIZES]
    with torch.inference_mode():
        for each in batches:
            assert torch.allclose(compiled(each), encoder(each), atol=2e-5)
