"""Loads what `--model` names: encoder, heads, tokenizer and fingerprint, ready to serve; or refuses in one line."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.maxsim import choice as maxsim
from gpu_worker.kernels.maxsim.comparison import MaxSimKernel
from gpu_worker.model.beside import BesideAdapter
from gpu_worker.model.beside import read as read_beside
from gpu_worker.model.encoder.encoder import ENDLESS, Encoder, positions_of, uncounted_id_of
from gpu_worker.model.fingerprint import fingerprint_of
from gpu_worker.model.format_judge import FormatJudge
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.preparation import Preparation
from gpu_worker.model.quiet import quiet
from gpu_worker.model.source import Source, open_source, vocabulary_rows
from gpu_worker.model.tune import same_bits as bits
from gpu_worker.model.tune.encoder_forms import FormChoice, Forms
from gpu_worker.model.tune.linear import Linear, PrepackedLinear
from gpu_worker.model.tune.native_layers import forms_of
from gpu_worker.model.tune.rounding import ROUNDED
from gpu_worker.model.verify.feeding import Feeding, feeding_of
from gpu_worker.model.verify.head_gate import NO_ORDER
from gpu_worker.model.verify.in_pieces import Cutting
from gpu_worker.model.verify.probes import ProbeCosts, Probes
from gpu_worker.repository import fitting, vocabulary
from gpu_worker.repository.adapter_config import NamedAdapter
from gpu_worker.repository.files import first_line
from gpu_worker.repository.late_overrides import NO_OVERRIDES, LateOverrides
from gpu_worker.repository.late_reading import LengthLimits, resolve
from gpu_worker.repository.recipe import Recipe
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

USUAL = 512
"""Most tokens of a text where neither positions nor files set a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model: what runs (`encoder`, `heads`), what its files say (`recipe`), and how it is known.

    `names` are those that clients may call it by; replies give the first. `max_tokens` is the longest text;
    `late_interaction` has limits of its own for its sides.
    `notice` is what a user should know, `findings` what was measured while loading, in lines for the log. `formats` is
    what other number formats would bring, or why this one was chosen.
    `unpacked_reason` is why texts run by equal length, empty where they run packed. `cutting`: whether long texts may
    be computed in pieces.
    `head_order` is entered while heads run, `score_order` while scores are computed: they keep PyTorch's operators in
    one order where a text's bits may not depend on others.
    `adapters` are the models of the adapters over this one, which share its encoder and heads; `adapter` is the number
    of such a model, 0 for the base.
    `instruction_marks` are token sequences; pooling leaves out a text's tokens up to the first of them.
    """

    names: tuple[str, ...]
    family: str
    encoder: Encoder
    heads: Heads
    recipe: Recipe
    tokenizer: TokenizerFile
    instruction_marks: list[tuple[int, ...]]
    vocabulary_size: int
    max_tokens: int
    late_interaction: LateInteraction | None
    placement: Placement
    linear: str
    fingerprint: str
    notice: str
    formats: str
    findings: tuple[str, ...]
    unpacked_reason: str
    flops_per_token: float
    weight_bytes: int
    maxsim: MaxSimKernel
    cutting: Cutting
    adapter: int = 0
    adapters: "tuple[Model, ...]" = ()
    head_order: AbstractContextManager[object] = NO_ORDER
    score_order: AbstractContextManager[object] = NO_ORDER

    @property
    def native_layers(self) -> str:
        """The forms of the layers that run whole by the processor's kernels; empty where none does."""
        return forms_of(self.encoder.model)

    @property
    def longest(self) -> int:
        """Most tokens of a sequence, over texts and the sides of late interaction."""
        late = self.late_interaction
        return max(self.max_tokens, *((late.query_length, late.document_length) if late else (0,)))


def load(
    name: str,
    placement: Placement,
    *,
    served_names: tuple[str, ...] = (),
    max_tokens: int = 0,
    trust_remote_code: bool = False,
    late: LateOverrides = NO_OVERRIDES,
    revision: str = "",
    forms: Forms | None = None,
    linear: Linear = "auto",
    same_bits: bool = False,
    judge: FormatJudge | None = None,
    cuts: bool = True,
    adapters: Sequence[NamedAdapter] = (),
) -> Model:
    """Loads, checks and prepares a model. `served_names`: what clients call it, none for its own name and id;
    `max_tokens` 0 means as the files say; `revision` is of a hub id; `forms`: those that an accelerator may run its
    encoder in, None for as it is written; `linear`: whether layers are rounded; `same_bits`: rows of a text must have
    the same bits whatever other texts are computed with it; `judge`: judges the number format, None where the user
    chose it; `cuts`: whether long texts are to be computed in pieces; `adapters`: those that are served over the model.

    Raises ModelRefused.
    """
    placement.enter()
    if adapters and (linear in ROUNDED or judge is not None):
        raise ModelRefused("--adapter goes with exact linear layers alone: no --linear int8 or fp8, no --dtype fastest")
    if linear in ROUNDED:
        ROUNDED[linear].check_device(placement)
        placement = replace(placement, automatic=False)
    if same_bits:
        bits.check(placement)
    with quiet():
        attention.register()
        source = open_source(name, placement, trust_remote_code, late, revision)
        try:
            beside = read_beside(source, adapters, trust_remote_code)
            model = _loaded(
                source, served_names or source.names, max_tokens, late, forms, linear, same_bits, judge, cuts, beside
            )
            return replace(model, adapters=tuple(_with_adapter(model, *entry) for entry in enumerate(beside, 1)))
        except ModelRefused as refused:
            if source.placement == placement:
                raise
            raise ModelRefused(f"{refused}; its config.json asks for float16, --dtype bfloat16 may do") from refused
        except Exception as error:  # a class that is no text encoder fails anywhere, and so does one without memory
            raise ModelRefused(f"{type(source.model).__name__} cannot be run: {first_line(error)}") from error


def _loaded(
    source: Source,
    names: tuple[str, ...],
    max_tokens: int,
    late: LateOverrides,
    forms: Forms | None,
    linear_setting: Linear,
    same_bits: bool,
    judge: FormatJudge | None,
    cuts: bool,
    beside: Sequence[BesideAdapter],
) -> Model:
    placement = source.placement
    config = source.model.config.get_text_config()
    rows = vocabulary_rows(source.model.config)
    uncounted = uncounted_id_of(source.model)
    positions = positions_of(config, uncounted)
    limit = _limit(max_tokens, source.recipe, positions)
    length_limits = LengthLimits(usual=limit, requested=max_tokens, positions=positions, uncounted=uncounted)
    late.check(source.tokenizer, length_limits)
    late_recipe = source.recipe.late_interaction
    reading = resolve(late_recipe, source.tokenizer, length_limits) if late_recipe else None
    fitting.check(source.recipe, source.reader, length_limits, reading)
    vocabulary.check_used(source.recipe, reading, rows)
    flops = 2.0 * _multiplied_weights(source.model.base_model)
    special = [*source.tokenizer.special_tokens.values(), *([] if uncounted is None else [uncounted])]
    limits = (limit, *((reading.query_length, reading.document_length) if reading else ()))
    unattended, costs = _unattended(reading, config), ProbeCosts.of(placement.device)
    feeding = _feeding(source, reading)
    probes = Probes.of(
        config, positions, special, flops, unattended, max(limits), costs, feeding.types, feeding.written
    )
    form_finder = None if forms is None else partial(FormChoice, forms=forms, longest=max(limits), tails=unattended)
    preparation = Preparation(
        source,
        length_limits,
        probes,
        feeding,
        form_finder,
        linear_setting,
        same_bits=same_bits,
        judge=judge,
        cuts=cuts,
        beside=beside,
    )
    prepared = preparation.run()
    mode, heads, linear = prepared.mode, prepared.heads, prepared.linear
    notices = (source.recipe.notice, prepared.notice, mode.notice, probes.notice(max(limits)))
    mark = source.recipe.instruction_mark
    return Model(
        names=names,
        family=config.model_type,
        encoder=mode.encoder,
        heads=heads,
        recipe=source.recipe,
        tokenizer=source.tokenizer,
        instruction_marks=source.tokenizer.marks(mark) if mark else [],
        vocabulary_size=rows,
        max_tokens=limit,
        late_interaction=reading,
        placement=placement,
        linear=linear,
        fingerprint=fingerprint_of(source, limit, reading, linear, same_bits=same_bits, adapted=bool(beside)),
        notice="; ".join(notice for notice in notices if notice),
        formats=prepared.formats,
        findings=(*source.findings, *mode.findings),
        unpacked_reason=mode.unpacked_reason,
        flops_per_token=max(flops, 2.0 * mode.encoder.width**2),
        weight_bytes=_bytes([mode.encoder.model, *heads.modules()]),
        maxsim=maxsim.choose(
            placement.device, heads.multi_vector.width if heads.multi_vector else 128, same_bits=same_bits
        ),
        cutting=prepared.cutting,
        head_order=prepared.head_order,
        score_order=prepared.score_order,
    )


def _unattended(late: LateInteraction | None, config: Any) -> bool:
    """Whether queries have tails that no token attends to. Raises ModelRefused where such a tail would see no token."""
    if late is None or late.query_expansion is QueryExpansion.NONE or late.attend_to_expansion:
        return False
    window = getattr(config, "sliding_window", None)
    if window and late.expansion_length > window:
        raise ModelRefused(
            f"queries are expanded to {late.expansion_length} tokens that nobody attends to, "
            f"beyond the attention window of {window}; see --attend-to-expansion"
        )
    return True


def _feeding(source: Source, late: LateInteraction | None) -> Feeding:
    expands = late is not None and late.query_expansion is not QueryExpansion.NONE
    pairs = source.recipe.weights_of == "sequence-classification"
    return feeding_of(source.model.base_model, source.tokenizer.inputs, pairs=pairs, expands=expands)


def _limit(max_tokens: int, recipe: Recipe, positions: int) -> int:
    if max_tokens > positions:
        raise ModelRefused(f"--max-tokens = {max_tokens}: the model has {positions} positions")
    return max_tokens or min(recipe.max_tokens or (USUAL if positions == ENDLESS else positions), positions)


def _multiplied_weights(base: Any) -> int:
    """About how many weights every token is multiplied with: all but the embeddings, of which it reads one row."""
    embeddings = base.get_input_embeddings()
    looked_up = sum(weight.numel() for weight in embeddings.parameters()) if isinstance(embeddings, nn.Module) else 0
    whole: int = sum(weight.numel() for weight in base.parameters())
    return whole - looked_up


def _with_adapter(base: Model, number: int, adapter: BesideAdapter) -> Model:
    """The model of an adapter over a base: its own name, prompts, limit and fingerprint."""
    limit = min(base.max_tokens, adapter.recipe.max_tokens or base.max_tokens)
    notices = (base.notice, f"an adapter over {base.names[0]}: {adapter.parts.description}")
    return replace(
        base,
        names=(adapter.name,),
        recipe=adapter.recipe,
        max_tokens=limit,
        fingerprint=adapter.fingerprint(base.fingerprint, limit),
        notice="; ".join(filter(None, notices)),
        weight_bytes=adapter.weight_bytes,
        adapter=number,
    )


def _bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes of all weights as they are laid out for computing; weights that modules share count once."""
    tensors = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    packed = {
        id(layer): layer.packed
        for module in modules
        for layer in module.modules()
        if isinstance(layer, PrepackedLinear)
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors.values(), *packed.values()))
