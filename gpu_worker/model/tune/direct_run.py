"""Runs an encoder by the few modules around its layers, without transformers' own code of the whole model.

Where layers run in one call, that code takes a tenth of a short text's time, though it mostly hands tensors from one
module to the next: a module makes hidden states of token ids, another rotary angles of positions, layers follow, and a
last module normalises. A recorded run tells which modules these are; then a run has to give the same bits without the
code between. It serves runs with the inputs of the recorded one: texts with token types and without may run otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gpu_worker.device.memory import ran_out
from gpu_worker.kernels.attention.interface import AttentionCall
from gpu_worker.model.encoder.packed import PackedEncoder, inputs_of
from gpu_worker.model.tune.embedding_sum import EmbeddingSum
from gpu_worker.model.tune.module_calls import ModuleCall, RepeatedCall, maker_of
from gpu_worker.model.tune.native_layers import NativeLayer
from gpu_worker.ragged.batch import RaggedBatch

STATES = "hidden_states"
"""Name of the states before the first layer, among the model's own inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRun:
    """The modules of a run, in their order; see `packed.RunsDirectly`.

    `embeddings` makes hidden states, `angles` make rotary angles, `norm` makes the last states; None where layers do.
    """

    names: frozenset[str]
    """Names of the inputs of the recorded run."""
    embeddings: RepeatedCall | EmbeddingSum
    angles: Sequence[RepeatedCall]
    layers: Sequence[tuple[NativeLayer, int | None]]
    """The first layer of each call of several, and the number of what makes its angles; None for a layer without."""
    norm: nn.Module | None

    def serves(self, inputs: Mapping[str, Tensor], ragged: AttentionCall) -> bool:
        joined = (layer.joined for layer, _ in self.layers)
        return inputs.keys() == self.names and all(run is not None and run.serve(ragged) for run in joined)

    def run(self, inputs: Mapping[str, Tensor], ragged: AttentionCall) -> Tensor:
        states: Tensor = self.embeddings.make(inputs)
        tensors = {**inputs, STATES: states}
        angles = [call.make(tensors) for call in self.angles]
        for layer, number in self.layers:
            states = layer(states, ragged=ragged, position_embeddings=None if number is None else angles[number])
        return states if self.norm is None else self.norm(states)


def add_direct_run(
    encoder: PackedEncoder, chains: Sequence[Sequence[NativeLayer]], calls: Sequence[ModuleCall], compared: RaggedBatch
) -> str:
    """Lets an encoder run so, in place, and returns why it cannot; empty where it does.

    `chains`: its layers that run in one call each. `calls`: those of a recorded run. It cannot where hidden states of
    `compared`, which has the inputs of that run, have other bits then.
    """
    earlier = encoder.direct
    try:
        direct = _direct_run(chains, calls)
        if any(direct.names == other.names for other in earlier if isinstance(other, DirectRun)):
            return ""
        if inputs_of(compared).keys() != direct.names:
            raise ValueError("texts that would be compared have other inputs")
        with torch.inference_mode():
            expected = encoder(compared)
            encoder.direct = (*earlier, direct)
            if torch.equal(encoder(compared), expected):
                return ""
        reason = "hidden states have other bits"
    except Exception as error:  # it did more than call these modules, or foreign code wants more
        if ran_out(error):
            raise
        reason = str(error) or type(error).__name__
    encoder.direct = earlier
    return reason


def _direct_run(chains: Sequence[Sequence[NativeLayer]], calls: Sequence[ModuleCall]) -> DirectRun:
    """What a recorded run did. Raises ValueError where it did more than call these modules."""
    of_layers = [call for call in calls if isinstance(call.module, NativeLayer)]
    if [call.module for call in of_layers] != [layer for chain in chains for layer in chain]:
        raise ValueError("some layers run by themselves, or more than once")
    if any(after.states is not before.output for before, after in pairwise(of_layers)):
        raise ValueError("something happens between layers")
    first, model = of_layers[0], calls[-1]
    before = calls[: calls.index(first)]
    inputs = {name: value for name, value in model.keywords.items() if isinstance(value, Tensor)}
    embeddings = maker_of(first.states, before)
    if embeddings is None or first.states is None:
        raise ValueError("no module makes the states before the first layer")
    makers, layers = list[ModuleCall](), list[tuple[NativeLayer, int | None]]()
    call_of = {call.module: call for call in of_layers}
    for chain in chains:
        number, rotary = None, call_of[chain[0]].keywords.get("position_embeddings")
        if chain[0].rotated and rotary is not None:
            maker = maker_of(rotary, before)
            if maker is None:
                raise ValueError("no module makes the rotary angles")
            if maker not in makers:
                makers.append(maker)
            number = makers.index(maker)
        layers.append((chain[0], number))
    return DirectRun(
        names=frozenset(inputs),
        embeddings=_embeddings(embeddings, before, inputs),
        angles=[RepeatedCall(maker, {**inputs, STATES: first.states}) for maker in makers],
        layers=layers,
        norm=_norm_behind(of_layers[-1].output, model.output.last_hidden_state, calls),
    )


def _embeddings(
    maker: ModuleCall, calls: Sequence[ModuleCall], inputs: Mapping[str, Tensor]
) -> RepeatedCall | EmbeddingSum:
    """What makes the states before the first layer: a sum of tables where that gives the bits of the module's own call.

    Raises ValueError where neither can be made again.
    """
    try:
        embeddings = EmbeddingSum.of(maker, calls, inputs)
        with torch.inference_mode():
            if torch.equal(embeddings.make(inputs), maker.output):
                return embeddings
    except (ValueError, RuntimeError) as error:  # it is another module
        if ran_out(error):
            raise
    return RepeatedCall(maker, inputs)


def _norm_behind(states: Tensor, last: Tensor, calls: Sequence[ModuleCall]) -> nn.Module | None:
    """The module that makes the last hidden states of those behind the layers; None where these are the last ones.

    Raises ValueError where more happens there.
    """
    if last is states:
        return None
    maker = maker_of(last, calls)
    if maker is None or len(maker.arguments) != 1 or maker.arguments[0] is not states or maker.keywords:
        raise ValueError("more than a normalisation follows the layers")
    return maker.module
