"""Loads what `--model` names: encoder, heads, tokenizer and fingerprint, ready to serve; or refuses in one line."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gpu_worker.device import huge_pages
from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.maxsim import choice as maxsim
from gpu_worker.model.beside import BesideAdapter
from gpu_worker.model.beside import read as read_beside
from gpu_worker.model.encoder.encoder import ENDLESS, positions_of, uncounted_id_of
from gpu_worker.model.fingerprint import fingerprint_of
from gpu_worker.model.model import Model as Model
from gpu_worker.model.preparation import Preparation
from gpu_worker.model.quiet import quiet
from gpu_worker.model.source import Source, open_source, vocabulary_rows
from gpu_worker.model.static_preparation import prepare as prepare_static
from gpu_worker.model.tune import int8
from gpu_worker.model.tune.graphs import GraphSettings, with_graphs
from gpu_worker.model.tune.linear import Linear
from gpu_worker.model.verify.own_run import Feeding, feeding_of
from gpu_worker.model.verify.probes import ProbeCosts, Probes
from gpu_worker.model.verify.runs import Cutting
from gpu_worker.model.weight_sizes import multiplied_weights, weight_bytes
from gpu_worker.repository import fitting, listwise_format, vocabulary
from gpu_worker.repository.adapter_config import NamedAdapter
from gpu_worker.repository.files import first_line
from gpu_worker.repository.fitting import LengthLimits
from gpu_worker.repository.recipe import Recipe
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

USUAL = 512
"""Most tokens of a text where neither positions nor files set a limit."""
USUAL_STATIC = 8192
"""The same for static embeddings, which cost next to nothing a token."""
STATIC = "static"
"""The family of static embeddings, for the card."""
ROUTED = "queries and documents of a Router are computed in one step"
"""Why no text of a Router is cut."""


def load(
    name: str,
    placement: Placement,
    *,
    served_names: tuple[str, ...] = (),
    max_tokens: int = 0,
    trust_remote_code: bool = False,
    late: Path | None = None,
    revision: str = "",
    graphs: GraphSettings | None = None,
    linear: Linear = "auto",
    cuts: bool = True,
    shares: bool = True,
    adapters: Sequence[NamedAdapter] = (),
) -> Model:
    """Loads, checks and prepares a model. `served_names`: what clients call it, none for its own name and id;
    `max_tokens` 0 means as the files say; `revision` is of a hub id; `graphs`: those that an accelerator may run steps
    by, None for none; `linear`: whether layers are rounded; `cuts`: whether long texts are to be computed in pieces;
    `shares`: whether texts that begin alike are to share their first tokens; `adapters`: those that are served over the
    model; `late`: the file of --late-interaction.

    Raises ModelRefused.
    """
    placement.enter()
    if adapters and linear == "int8":
        raise ModelRefused("--adapter goes with exact linear layers alone: no --linear int8")
    if linear == "int8":
        int8.check_device(placement)
        placement = replace(placement, automatic=False)
    with quiet():
        attention.register()
        source = open_source(name, placement, trust_remote_code, late, revision)
        try:
            if adapters and (source.recipe.static or source.query):
                raise ModelRefused("--adapter: static embeddings and Routers take no adapter")
            beside = read_beside(source, adapters, trust_remote_code)
            names = served_names or source.names
            options = (names, max_tokens, graphs, linear)
            if source.query is None:
                model = _loaded(source, *options, cuts, shares, beside)
                return replace(model, adapters=tuple(_with_adapter(model, *entry) for entry in enumerate(beside, 1)))
            query, document = (_loaded(side, *options, False, False) for side in (source.query, source))
            return _joined(query, document)
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
    graphs: GraphSettings | None,
    linear_setting: Linear,
    cuts: bool,
    shares: bool,
    beside: Sequence[BesideAdapter] = (),
) -> Model:
    if source.recipe.static:
        return _static(source, names, max_tokens)
    placement = source.placement
    config = source.model.config.get_text_config()
    rows = vocabulary_rows(source.model.config)
    uncounted = uncounted_id_of(source.model)
    positions = positions_of(config, uncounted)
    limit = _limit(max_tokens, source.recipe, positions)
    length_limits = LengthLimits(usual=limit, requested=max_tokens, positions=positions, uncounted=uncounted)
    late_recipe = source.recipe.late_interaction
    reading = fitting.resolve(late_recipe, source.tokenizer, length_limits) if late_recipe else None
    fitting.check(source.recipe, source.reader, length_limits, reading)
    blocks = source.recipe.listwise
    listwise = listwise_format.resolve(blocks, source.tokenizer, source.reader, rows) if blocks else None
    vocabulary.check_used(source.recipe, reading, rows)
    flops = 2.0 * multiplied_weights(source.model.base_model)
    special = [*source.tokenizer.special_tokens.values(), *([] if uncounted is None else [uncounted])]
    limits = (limit, *((reading.query_length, reading.document_length) if reading else ()))
    unattended, costs = _unattended(reading, config), ProbeCosts.of(placement.device)
    feeding = _feeding(source, reading)
    probes = Probes.of(
        config, positions, special, flops, unattended, max(limits), costs, feeding.types, feeding.written
    )
    capture = None if graphs is None else partial(with_graphs, settings=graphs, longest=max(limits))
    preparation = Preparation(
        source,
        length_limits,
        probes,
        feeding,
        capture,
        linear_setting,
        cuts=cuts,
        shares=shares,
        beside=beside,
    )
    prepared = preparation.run()
    mode, heads, linear = prepared.mode, prepared.heads, prepared.linear
    huge_pages.move_weights([mode.encoder.model, *heads.modules()])
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
        fingerprint=fingerprint_of(source, limit, reading, linear),
        notice="; ".join(notice for notice in notices if notice),
        formats=prepared.formats,
        findings=(*source.findings, *mode.findings),
        unpacked_reason=mode.unpacked_reason,
        flops_per_token=max(flops, 2.0 * mode.encoder.width**2),
        weight_bytes=weight_bytes([mode.encoder.model, *heads.modules()]),
        maxsim=maxsim.choose(placement.device, heads.multi_vector.width if heads.multi_vector else 128),
        cutting=prepared.cutting,
        unshared=prepared.unshared,
        other_bits=prepared.other_bits,
        listwise=replace(listwise, dimensions=heads.dense.width) if listwise and heads.dense else None,
    )


def _static(source: Source, names: tuple[str, ...], max_tokens: int) -> Model:
    """Loads a static embedding, which has no layers to tune."""
    table: nn.Embedding = source.model
    limit = max_tokens or source.recipe.max_tokens or USUAL_STATIC
    limits = LengthLimits(usual=limit, requested=max_tokens, positions=ENDLESS, uncounted=None)
    fitting.check(source.recipe, source.reader, limits, None)
    prepared = prepare_static(source)
    return Model(
        names=names,
        family=STATIC,
        encoder=prepared.mode.encoder,
        heads=prepared.heads,
        recipe=source.recipe,
        tokenizer=source.tokenizer,
        instruction_marks=[],
        vocabulary_size=table.num_embeddings,
        max_tokens=limit,
        late_interaction=None,
        placement=source.placement,
        linear=prepared.linear,
        fingerprint=fingerprint_of(source, limit, None, prepared.linear),
        notice=source.recipe.notice,
        formats="",
        findings=(),
        unpacked_reason="",
        flops_per_token=2.0 * table.embedding_dim,
        weight_bytes=weight_bytes([table, *prepared.heads.modules()]),
        maxsim=maxsim.choose(source.placement.device, table.embedding_dim),
        cutting=prepared.cutting,
        other_bits=prepared.other_bits,
    )


def _joined(query: Model, document: Model) -> Model:
    """The model of a Router, whose queries go through `query`. Raises ModelRefused where vectors do not compare."""
    widths = [(model.heads.dense.width if model.heads.dense else model.vocabulary_size) for model in (query, document)]
    if widths[0] != widths[1]:
        kinds = "dimensions" if document.heads.dense else "token ids"
        raise ModelRefused(f"its Router makes vectors of {widths[0]} {kinds} of queries and {widths[1]} of documents")
    notices = [document.notice, *([f"queries: {query.notice}"] if query.notice not in ("", document.notice) else [])]
    facts = f"{query.fingerprint} {document.fingerprint}"
    return replace(
        document,
        query=query,
        cutting=Cutting(refusal=ROUTED),
        unshared=ROUTED,
        other_bits=query.other_bits or document.other_bits,
        weight_bytes=query.weight_bytes + document.weight_bytes,
        notice="; ".join(filter(None, notices)),
        findings=(*(f"queries: {finding}" for finding in query.findings), *document.findings),
        fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
    )


def _unattended(late: LateInteraction | None, config: Any) -> bool:
    """Whether queries have tails that no token attends to. Raises ModelRefused where such a tail would see no token."""
    if late is None or late.query_expansion is QueryExpansion.NONE or late.attend_to_expansion:
        return False
    window = getattr(config, "sliding_window", None)
    if window and late.expansion_length > window:
        raise ModelRefused(
            f"queries are expanded to {late.expansion_length} tokens that nobody attends to, "
            f"beyond the attention window of {window}; see attend of query_expansion in --late-interaction"
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
