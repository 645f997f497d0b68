"""Floors: the least time that a workload can take on a device, and what sets it. Arithmetic alone; nothing runs.

A token costs products of the linear layers and products of attention, which share the device's matrix units and add up;
bytes of the device's memory; and bytes over the link to the host. Memory and link work beside the matrix units, so the
floor is the longest of the three. Numbers are bfloat16. Elementwise work counts as fused into the products before it,
each of which reads its input once and writes its output once; rows leave as float32. MaxSim is left out: a thousandth.
"""

import json
from dataclasses import dataclass

from benchmarks.machine import ROOT
from benchmarks.workloads import MINILM, Workload

HALF, SINGLE, IDS = 2, 4, 16
"""Bytes of a number inside, of one that leaves, and of a token's id with its position."""
STEP_TOKENS = 16_384
"""Most tokens of a step, in which the weights are read once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model that its cost depends on.

    `inner`: numbers between the products of its feed-forward part, computed twice where it is `gated`. `projected`:
    numbers of a token's row behind a projection, 0 where there is none.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    gated: bool = False
    causal: bool = False
    projected: int = 0

    @property
    def weights(self) -> int:
        """The weights of all linear layers, which every token is multiplied with."""
        query_width, key_width = self.heads * self.head, self.kv_heads * self.head
        attention, forward = (
            2 * self.hidden * (query_width + key_width),
            self.hidden * self.inner * (3 if self.gated else 2),
        )
        return self.layers * (attention + forward) + self.hidden * self.projected

    @property
    def numbers(self) -> int:
        """Numbers that a token moves through memory: in and out of four products and of attention, two residuals."""
        query_width, key_width = self.heads * self.head, self.kv_heads * self.head
        return self.layers * (6 * self.hidden + 2 * self.inner + 4 * query_width + 4 * key_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device's rates a second: operations, bytes of its memory, and bytes over the link to the host."""

    name: str
    flops: float
    memory: float
    link: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least seconds of a token, by part."""

    products: float
    attention: float
    memory: float
    link: float

    @property
    def tokens_per_second(self) -> float:
        """The most tokens a second that the floor allows."""
        return 1 / max(self.products + self.attention, self.memory, self.link)

    @property
    def binds(self) -> str:
        """The part that sets the floor."""
        computed = {"products": self.products, "attention": self.attention}
        most = max(self.memory, self.link)
        if sum(computed.values()) >= most:
            return max(computed, key=computed.__getitem__)
        return "memory" if self.memory == most else "link"


def floor(shape: Shape, workload: Workload, in_flight: int, device: Device) -> Floor:
    """Computes the floor of a workload's token with `in_flight` requests at a time, which share a step if they fit."""
    lengths = [length for request in workload.requests for length in request]
    tokens = sum(lengths)
    in_step = min(STEP_TOKENS, in_flight * tokens / len(workload.requests))
    squares = sum(length**2 for length in lengths) / tokens
    attended = 4 * squares * shape.heads * shape.head * shape.layers / (2 if shape.causal else 1)
    rows = {"dense": len(lengths) * shape.hidden, "tokens": tokens * (shape.projected or shape.hidden)}
    shipped = rows.get(workload.kind, len(lengths) - len(workload.requests))  # of a rerank, a score a document
    return Floor(
        products=2 * shape.weights / device.flops,
        attention=attended / device.flops,
        memory=HALF * (shape.numbers + shape.weights / in_step) / device.memory,
        link=(IDS + SINGLE * shipped / tokens) / device.link,
    )


def shape(model: str) -> Shape:
    """Reads the shape of a workload's model; a test compares all shapes with the models themselves."""
    shapes = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())
    return Shape(**shapes["random:minilm-l6" if model == MINILM else model])
