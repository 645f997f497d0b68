"""Makes layers of the processor's kernels that follow one another run in one call, and modules around them without
the model's own code, once the model passed its gate."""

from dataclasses import replace

from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.tune.direct_run import install_direct_run
from gpu_worker.model.tune.joined_layers import join_layers
from gpu_worker.model.tune.module_calls import record_calls
from gpu_worker.model.verify.probes import Probes

DIRECT = "modules around layers are called without the model's own code"
"""Finding where `direct_run` serves."""
RECORDED = range(2)
"""Probes of a run whose layers are recorded: short texts."""


def with_joined_layers(mode: ExecutionMode, probes: Probes) -> ExecutionMode:
    """The same mode, with findings that tell what runs so. The recorded probes and the longest one are compared."""
    encoder = mode.encoder
    if not isinstance(encoder, PackedEncoder):
        return mode
    longest = max(range(len(probes.texts)), key=lambda number: len(probes.texts[number]))
    compared = probes.batch((*RECORDED, longest), encoder)
    recorded = probes.batch(RECORDED, encoder)
    calls = record_calls(encoder.model, lambda: encoder(recorded))
    chains = join_layers(encoder, calls, compared)
    if not chains:
        return mode
    findings = list(mode.findings)
    layers = sum(map(len, chains))
    if len(chains) < layers:
        findings.append(f"{layers} layers run in {len(chains)} call{'s' * (len(chains) > 1)}")
    if install_direct_run(encoder, chains, calls, compared):
        findings.append(DIRECT)
    return replace(mode, findings=tuple(findings))
