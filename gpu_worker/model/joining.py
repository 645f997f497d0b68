"""Makes layers of the processor's kernels that follow one another run in one call, once the model passed its gate."""

from dataclasses import replace

from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.tune.joined_layers import join_layers
from gpu_worker.model.verify.probes import Probes

RECORDED = range(2)
"""Probes of a run whose layers are recorded: short texts."""


def with_joined_layers(mode: ExecutionMode, probes: Probes) -> ExecutionMode:
    """The same mode, with a finding where layers run together. The recorded probes and the longest one are compared."""
    encoder = mode.encoder
    if not isinstance(encoder, PackedEncoder):
        return mode
    longest = max(range(len(probes.texts)), key=lambda number: len(probes.texts[number]))
    layers = join_layers(encoder, probes.batch(RECORDED, encoder), probes.batch((*RECORDED, longest), encoder))
    if len(layers) == sum(layers):
        return mode
    finding = f"{sum(layers)} layers run in {len(layers)} call{'s' * (len(layers) > 1)}"
    return replace(mode, findings=(*mode.findings, finding))
