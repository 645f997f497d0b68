"""Floors against numbers that were worked out by hand, and shapes against the models."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from benchmarks.machine import ROOT
from benchmarks.roofline import Device, Floor, Shape, floor, shape
from benchmarks.workloads import Kind, Workload, named
from gpu_worker.device.placement import Placement
from harness.random_models import synthetic

KNOWN = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())
SMALL = {"hidden": 8, "layers": 2, "heads": 2, "kv_heads": 1, "head": 4, "inner": 16}
ONE = Device(name="one a second", flops=1, memory=1, link=1)


def work(kind: Kind, *requests: tuple[int, ...]) -> Workload:
    return Workload(name="by hand", says="", model="", kind=kind, requests=requests)


def test_a_token_costs_what_it_costs_by_hand() -> None:
    """Two layers of 8 numbers, two heads of 4 that share a key, 16 numbers within; texts of 4 and 12 tokens."""
    weights = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 2 * 8 * 16)  # query, key and value, output, up and down
    numbers = 2 * ((8 + 16) + (16 + 8) + (8 + 8) + 8 + (8 + 16) + (16 + 8) + 8)  # in and out; residuals alone
    assert asdict(floor(Shape(**SMALL), work("dense", (4,), (12,)), 2, ONE)) == {
        "products": 2 * weights,
        "attention": 4 * (4**2 + 12**2) * 8 * 2 / 16,  # of 16 tokens in all
        "memory": 2 * (numbers + weights / 16),  # one step holds both requests
        "link": (16 * 16 + 2 * 8 * 4) / 16,
    }


def test_gates_causal_layers_projections_and_what_is_shipped() -> None:
    """A third product within, half of attention, a product behind the last layer, rows of tokens or scores."""
    plain, gated = (floor(Shape(**SMALL, gated=gate), work("tokens", (8,)), 1, ONE) for gate in (False, True))
    assert gated.products - plain.products == 2 * 2 * 8 * 16
    assert floor(Shape(**SMALL, causal=True), work("dense", (8,)), 1, ONE).attention == plain.attention / 2
    projected = floor(Shape(**SMALL, projected=3), work("tokens", (8,)), 1, ONE)
    assert projected.products - plain.products == 2 * 8 * 3
    assert (plain.link, projected.link) == (16 + 4 * 8, 16 + 4 * 3)
    assert floor(Shape(**SMALL), work("rerank", (2, 4, 4)), 1, ONE).link == 16 + 4 * 2 / 10
    # weights are read once for the 16,384 tokens that a step may have, however many wait
    many, more = (floor(Shape(**SMALL), work("dense", (1024,)), count, ONE).memory for count in (16, 64))
    assert many == more == 2 * (256 + 896 / 16384)
    floors = [Floor(products=1, attention=3, memory=2, link=2), Floor(products=1, attention=1, memory=3, link=2)]
    assert [(least.binds, least.tokens_per_second) for least in floors] == [("attention", 1 / 4), ("memory", 1 / 3)]


@pytest.mark.parametrize("name", KNOWN)
def test_shapes_are_those_of_the_models(name: str) -> None:
    """Weights of linear layers, counted in the model; heads, and what the config says of causality."""
    config, heads = synthetic.shape_of(name.removeprefix("random:"))
    model = synthetic.build(config, heads.weights_of, Placement(device=torch.device("meta"), dtype=torch.bfloat16))
    layers = [layer for path, layer in model.named_modules() if isinstance(layer, nn.Linear) and "pooler" not in path]
    known, projected = shape(name), heads.modules.get("Dense", {}).get("out_features", 0)
    assert known.projected == projected
    assert known.weights == sum(layer.weight.numel() for layer in layers) + known.hidden * projected
    assert (known.hidden, known.heads) == (config.hidden_size, config.num_attention_heads)
    assert known.causal == (config.model_type == "qwen3")


def test_every_workload_has_a_shape_and_every_goal_a_workload() -> None:
    """So no row of a run is without its floor."""
    assert {workload.model for workload in named("full").values()} - {"minilm"} <= set(KNOWN)
    for goal in json.loads((ROOT / "benchmarks" / "goals.json").read_text()):
        assert goal["in flight"] in named("full")[goal["workload"]].in_flight
