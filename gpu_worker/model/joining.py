"""Makes layers of the processor's kernels that follow one another run in one call, and modules around them without
the model's own code, once the model passed its gate."""

from dataclasses import replace

from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.tune.direct_run import add_direct_run
from gpu_worker.model.tune.joined_layers import join_layers, joinable
from gpu_worker.model.tune.module_calls import record_calls
from gpu_worker.model.verify.probes import Probes

DIRECT, NOT_DIRECT = (
    "modules around layers are called without the model's own code",
    "the model's own code calls modules",
)
"""Findings where `direct_run` serves, and where it does not, with the reason behind it."""
RECORDED = range(2)
"""Probes of a run whose layers are recorded: short texts."""


def with_joined_layers(mode: ExecutionMode, probes: Probes) -> ExecutionMode:
    """The same mode, with findings that tell what runs so. Layers are compared with the recorded probes and the longest
    one, modules around them with all short ones, as texts and, where the model reads token types, as pairs."""
    encoder = mode.encoder
    if not isinstance(encoder, PackedEncoder) or not joinable(encoder):
        return mode
    longest = max(range(len(probes.texts)), key=lambda number: len(probes.texts[number]))
    recorded = probes.batch(RECORDED, encoder)
    calls = record_calls(encoder.model, lambda: encoder(recorded))
    chains = join_layers(encoder, calls, probes.batch((*RECORDED, longest), encoder))
    if not chains:
        return mode
    findings, layers = list(mode.findings), sum(map(len, chains))
    if len(chains) < layers:
        findings.append(f"{layers} layers run in {len(chains)} call{'s' * (len(chains) > 1)}")
    reason = add_direct_run(encoder, chains, calls, probes.batch(probes.alone, encoder))
    if not reason and encoder.token_types is not None:
        pairs = probes.pairs(RECORDED, encoder)
        calls = record_calls(encoder.model, lambda: encoder(pairs))
        reason = add_direct_run(encoder, chains, calls, probes.pairs(probes.alone, encoder))
    findings += [DIRECT] * bool(encoder.direct) + [f"{NOT_DIRECT}: {reason}"] * bool(reason)
    return replace(mode, findings=tuple(findings))
