"""Packed weights as the library compressed-tensors wrote them, and classes other than BERT's made from whole ones.

The numbers are those of its release 0.20: what `PackedQuantizationCompressor.compress` gave for a weight of 9 x 10 in
groups of five columns with zero points, and eight times what its `decompress` made of that.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.random_models import synthetic
from gpu_worker.repository import rounded_format, rounded_weights, weights
from gpu_worker.repository.recipe import Recipe, WeightsOf
from support.rounded import compressed, packed, write_rounded
from support.tiny import CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """What is stored, and `whole`: the weight times eight."""

    packed: list[list[int]]
    zeros: list[list[int]]
    whole: list[list[int]]


SCALES = [[1, 2], [4, 1], [3, 4], [2, 3], [1, 2], [4, 1], [3, 4], [2, 3], [1, 2]]
"""Scales times eight."""
VECTORS = {
    4: Vector(
        packed=[
            [1176502512, 2],
            [-196433563, 255],
            [-1349808395, 143],
            [-2096146762, 6],
            [-521142270, 200],
            [-15971228, 15],
            [1075640478, 0],
            [-1140389876, 48],
            [-155124496, 250],
        ],
        zeros=[[1049950800, 1640443267], [8, 11]],
        whole=[
            [0, 15, 0, 0, 0, -2, 6, 2, -2, -6],
            [0, 4, 16, 20, 20, -4, -4, 7, 7, 7],
            [-15, 15, 12, -6, 3, -20, 8, -12, 8, -20],
            [-18, -8, -18, -20, 0, -6, 3, 18, 12, -6],
            [-2, -4, -4, -4, -4, 16, -14, 14, 2, 10],
            [-20, -12, 12, -20, 12, -12, 3, 3, 3, -12],
            [0, -15, -18, 3, -6, 0, -4, 12, -4, -4],
            [18, -6, 10, -6, 8, -18, 18, 15, -18, -9],
            [-8, 7, 4, 7, -8, 2, -10, 8, -2, 8],
        ],
    ),
    8: Vector(
        packed=[
            [2097152, -1476390672, 184],
            [-1936693148, -240, 65280],
            [-884257808, -788547403, 65516],
            [-4653112, 1342177464, 101],
            [-4096, 2097280, 36896],
            [1751690420, -108, 65535],
            [-1333755649, 3955967, 17408],
            [6815744, 1082142760, 24624],
            [-65328, 1880662016, 65440],
        ],
        zeros=[[-257929216, 550535216], [820023360, 1611710576], [128, 176]],
        whole=[
            [0, 0, 32, 0, 240, -64, -96, 240, 272, -96],
            [80, 96, 256, 240, -256, 127, 127, 127, -128, 127],
            [240, -255, -255, 129, 63, -96, 188, 0, 112, 188],
            [-80, 30, -112, 30, -112, -96, -96, 144, 207, -96],
            [-64, 176, 191, 191, 64, -224, -160, -224, -160, 64],
            [144, 112, -160, -160, 16, 63, 63, 63, 63, 63],
            [93, -288, -288, -144, 93, 304, 176, -64, -64, 208],
            [-96, -96, 112, -96, -16, -144, 96, -96, -144, 0],
            [80, -128, 127, 127, -128, -32, -304, -128, -32, 158],
        ],
    ),
}


@pytest.mark.parametrize("bits", VECTORS)
def test_what_the_library_packed_is_read_as_the_library_reads_it(tmp_path: Path, bits: int) -> None:
    """A row takes no whole number of words, nor do the rows of zero points."""
    stored = VECTORS[bits]
    tensors = {
        "weight_packed": torch.tensor(stored.packed, dtype=torch.int32),
        "weight_scale": torch.tensor(SCALES) / 8,
        "weight_zero_point": torch.tensor(stored.zeros, dtype=torch.int32),
        "weight_shape": torch.tensor([9, 10]),
    }
    save_file({f"layer.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    form = rounded_format.RoundedFormat(name="pack-quantized", scale="_scale", blocks=((1, 5),))
    whole = rounded_weights.read(tmp_path, form, torch.float32)
    assert list(whole) == ["layer.weight"]
    assert (whole["layer.weight"] * 8).tolist() == stored.whole


@pytest.mark.parametrize("saved", ["encoder", "causal-lm"])
@pytest.mark.parametrize("read", ["encoder", "causal-lm"])
def test_a_decoder_is_made_of_rounded_weights(tmp_path: Path, saved: WeightsOf, read: WeightsOf) -> None:
    """Qwen3Model and Qwen3ForCausalLM, whose names differ by a prefix; a tied head comes of the token embeddings."""
    config, _ = synthetic.shape_of("tiny-qwen3")
    config.tie_word_embeddings = True
    synthetic.build(config, saved, CPU).save_pretrained(tmp_path / "model")
    form = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16, symmetric=False)
    folders = write_rounded(tmp_path / "model", tmp_path, form, packed(4, 16, zero=True))
    recipe = Recipe(weights_of=read)
    rounded, whole = (weights.load(folder, recipe, CPU, False)[0] for folder in folders)
    assert type(rounded) is type(whole)
    assert type(rounded).__name__ == {"encoder": "Qwen3Model", "causal-lm": "Qwen3ForCausalLM"}[read]
    found, expected = rounded.state_dict(), whole.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6, msg=name)
    if read == "causal-lm":
        assert rounded.lm_head.weight is rounded.model.embed_tokens.weight
    untouched = weights.load(tmp_path / "model", recipe, CPU, False)[0].state_dict()
    assert any(not torch.equal(untouched[name], tensor) for name, tensor in found.items())
