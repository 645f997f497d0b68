"""Loads what `--model` names: encoder, heads, tokenizer and fingerprint, ready to serve; or refuses in one line.

The stages, each a function: read the files, fit limits to each other, take the reference runs, build the heads, tune,
verify, and put the model together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gpu_worker.device import memory
from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim import maxsim_kernels as maxsim
from gpu_worker.model.encoder.encoder import ENDLESS, StaticEncoder, positions_of, uncounted_id_of
from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.heads.building import HeadBuilder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.model import Model as Model
from gpu_worker.model.served_adapters import ServedAdapter, read_adapters
from gpu_worker.model.source import LoadOptions, Source, fingerprint_of, open_source, quiet, vocabulary_rows
from gpu_worker.model.tune.linear import PrepackedLinear, check_int8, install_native
from gpu_worker.model.tuning import take_references, tune, verify
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.gate import check_means
from gpu_worker.model.verify.own_run import Feeding, feeding_of
from gpu_worker.model.verify.probes import ProbeCosts, Probes
from gpu_worker.repository import fitting, rerankers
from gpu_worker.repository.files import first_line
from gpu_worker.repository.fitting import LengthLimits
from gpu_worker.repository.recipe import Recipe
from gpu_worker.repository.static_format import Queries
from shared.card import LateInteraction, Listwise
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion

USUAL = 512
"""Most tokens of a text where neither positions nor files set a limit."""
USUAL_STATIC = 8192
"""Most tokens of a text of a static embedding without a limit, which costs next to nothing a token."""
USUAL_ROWS = 128
"""Numbers of a row that MaxSim is chosen for where the model has none of its own."""
NO_LINEAR = "none"
"""How linear layers of static embeddings run, for the card."""
WHOLE = "rows of a table are looked up at once"
"""Why no text of a static embedding is cut, and none shares tokens."""
DEFAULTS = LoadOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """What the files, the tokenizer and the user's options say together. `rows`: those of the vocabulary. `late`: late
    interaction as resolved. `longest`: most tokens of a sequence."""

    rows: int
    limits: LengthLimits
    late: LateInteraction | None = None
    listwise: Listwise | None = None

    @property
    def longest(self) -> int:
        """Most tokens of a text, or of a side of late interaction."""
        return max(self.limits.usual, *((self.late.query_length, self.late.document_length) if self.late else (0,)))


def load(name: str, placement: Placement, options: LoadOptions = DEFAULTS) -> Model:
    """Loads, checks and prepares a model. Raises ModelRefused."""
    placement.enter()
    if options.rounded:
        if options.adapters:
            raise ModelRefused("--adapter goes with exact linear layers alone: no --dtype int8")
        check_int8(placement)
        placement = replace(placement, automatic=False)
    with quiet():
        attention.register()
        source = open_source(name, placement, options)
        try:
            if options.adapters and (source.recipe.static or source.queries):
                raise ModelRefused("--adapter: static embeddings and inference-free SPLADE take no adapter")
            return _loaded(source, options)
        except ModelRefused as refused:
            if source.placement == placement:
                raise
            raise ModelRefused(f"{refused}; its config.json asks for float16, --dtype bfloat16 may do") from refused
        except Exception as error:  # a class that is no text encoder fails anywhere, and so does one without memory
            raise ModelRefused(f"{type(source.model).__name__} cannot be run: {first_line(error)}") from error


def _loaded(source: Source, options: LoadOptions) -> Model:
    """Makes the model of a source, with those of its adapters."""
    if source.recipe.static:
        return _static(source, options)
    adapters = read_adapters(source, options)
    fitted = _fitted(source, options)
    multiplied = _multiplied_weights(source.model.base_model)
    feeding = _feeding(source, fitted.late)
    probes = _probes(source, fitted, feeding, 2.0 * multiplied)
    untuned = take_references(source, fitted.limits, probes, feeding, adapters)
    heads, reference = untuned.heads, untuned.reference
    mode = tune(untuned, options, fitted.longest)
    memory.move_to_huge_pages([mode.encoder.model, *heads.modules()])
    notices = (source.recipe.notice, reference.notice, mode.notice, probes.notice(fitted.longest))
    flops = 2.0 * max(multiplied, mode.encoder.width**2)
    model = _assembled(source, options, fitted, heads, mode, notices=notices, flops_per_token=flops)
    model = verify(model, reference, options)
    if source.queries:
        model = _with_queries(model, source.queries, options.max_tokens)
    of_adapters = tuple(_with_adapter(model, *entry) for entry in enumerate(adapters, 1))
    return replace(model, adapters=of_adapters, task_models=_task_models(adapters))


def _task_models(adapters: Iterable[ServedAdapter]) -> dict[str, str]:
    """The names of the models of tasks, by task."""
    return {adapter.task: adapter.names[0] for adapter in adapters if adapter.task}


def _static(source: Source, options: LoadOptions) -> Model:
    """Loads a static embedding, which has no layers to tune. Raises ModelRefused where a text's mean differs alone and
    among others."""
    table: nn.Embedding = source.model
    limit = options.max_tokens or source.recipe.max_tokens or USUAL_STATIC
    limits = LengthLimits(usual=limit, requested=options.max_tokens, positions=ENDLESS, uncounted=None)
    fitting.check(source.recipe, source.reader, limits, None)
    encoder = StaticEncoder(table)
    heads = HeadBuilder(source.recipe, table, source.placement, source.layers, encoder.width).build()
    probes = Probes.of_table(table.num_embeddings)
    assert heads.dense is not None
    check_means(encoder, heads.dense, probes)
    if encoder.device.type == "cpu":
        install_native(heads.modules(), library.load())
    bits = reason_for_other_bits(encoder, heads, probes, pieces=False)
    mode = ExecutionMode(encoder=encoder, linear=NO_LINEAR)
    model = _assembled(
        source,
        options,
        _Fitted(rows=table.num_embeddings, limits=limits),
        heads,
        mode,
        notices=[source.recipe.notice],
        flops_per_token=2.0 * encoder.width,
    )
    return replace(model, whole_texts=WHOLE, unshared=WHOLE, other_bits=bits)


def _assembled(
    source: Source,
    options: LoadOptions,
    fitted: _Fitted,
    heads: Heads,
    mode: ExecutionMode,
    *,
    notices: Iterable[str],
    flops_per_token: float,
) -> Model:
    """Puts a model together."""
    recipe, limit = source.recipe, fitted.limits.usual
    mark, listwise, width = recipe.instruction_mark, fitted.listwise, mode.encoder.width
    rows = heads.multi_vector.width if heads.multi_vector else width if recipe.static else USUAL_ROWS
    return Model(
        names=options.names or source.names,
        encoder=mode.encoder,
        heads=heads,
        recipe=recipe,
        tokenizer=source.tokenizer,
        instruction_marks=source.tokenizer.marks(mark) if mark else [],
        vocabulary_size=fitted.rows,
        max_tokens=limit,
        late_interaction=fitted.late,
        placement=source.placement,
        linear=mode.linear,
        fingerprint=fingerprint_of(source, limit, fitted.late, mode.linear),
        notice="; ".join(filter(None, notices)),
        findings=(*source.findings, *mode.findings),
        flops_per_token=flops_per_token,
        weight_bytes=_weight_bytes([mode.encoder.model, *heads.modules()]),
        maxsim=maxsim.choose(source.placement.device, rows),
        listwise=replace(listwise, dimensions=heads.dense.width) if listwise and heads.dense else None,
    )


def _multiplied_weights(base: Any) -> int:
    """About how many weights every token is multiplied with: all but the embeddings, of which it reads one row."""
    embeddings = base.get_input_embeddings()
    looked_up = sum(weight.numel() for weight in embeddings.parameters()) if isinstance(embeddings, nn.Module) else 0
    all_weights: int = sum(weight.numel() for weight in base.parameters())
    return all_weights - looked_up


def _weight_bytes(modules: Iterable[nn.Module]) -> int:
    """Bytes of all weights as they are laid out for computing; weights that modules share count once."""
    tensors = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    packed = {
        id(layer): layer.packed
        for module in modules
        for layer in module.modules()
        if isinstance(layer, PrepackedLinear)
    }
    return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors.values(), *packed.values()))


def _fitted(source: Source, options: LoadOptions) -> _Fitted:
    """Fits limits, late interaction and the tokenizer to each other. Raises ModelRefused where they do not fit."""
    recipe, rows = source.recipe, vocabulary_rows(source.model.config)
    uncounted = uncounted_id_of(source.model)
    positions = positions_of(source.model.config.get_text_config(), uncounted)
    limit = _limit(options.max_tokens, recipe, positions)
    limits = LengthLimits(usual=limit, requested=options.max_tokens, positions=positions, uncounted=uncounted)
    late = fitting.resolve(recipe.late_interaction, source.tokenizer, limits) if recipe.late_interaction else None
    fitting.check(recipe, source.reader, limits, late)
    blocks = recipe.listwise
    listwise = rerankers.resolve_listwise(blocks, source.tokenizer, source.reader, rows) if blocks else None
    fitting.check_ids(recipe, late, rows)
    return _Fitted(rows=rows, limits=limits, late=late, listwise=listwise)


def _probes(source: Source, fitted: _Fitted, feeding: Feeding, flops: float) -> Probes:
    """Makes the texts that the gates compare. `flops`: those of a token."""
    config, uncounted = source.model.config.get_text_config(), fitted.limits.uncounted
    special = [*source.tokenizer.special_tokens.values(), *([] if uncounted is None else [uncounted])]
    unattended, costs = _unattended(fitted.late, config), ProbeCosts.of(source.placement.device)
    return Probes.of(
        config,
        fitted.limits.positions,
        special,
        flops_per_token=flops,
        unattended=unattended,
        limit=fitted.longest,
        costs=costs,
        types=feeding.types,
        written=feeding.written,
    )


def _with_queries(model: Model, queries: Queries, max_tokens: int) -> Model:
    """Makes the model of inference-free SPLADE. Raises ModelRefused where its queries and documents have other ids."""
    if queries.token_ids != model.vocabulary_size:
        raise ModelRefused(
            f"its Router's table has weights for {queries.token_ids} token ids, its documents' vocabulary "
            f"{model.vocabulary_size}"
        )
    notice = f"queries: {queries.notice}" if queries.notice not in ("", model.notice) else ""
    return replace(
        model,
        queries=replace(queries, max_tokens=max_tokens or queries.max_tokens),
        weight_bytes=model.weight_bytes + queries.weight_bytes,
        notice="; ".join(filter(None, (model.notice, notice))),
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


def _with_adapter(base: Model, number: int, adapter: ServedAdapter) -> Model:
    """Makes the model of an adapter over a base: its own name, prompts, limit and fingerprint."""
    limit = min(base.max_tokens, adapter.recipe.max_tokens or base.max_tokens)
    notices = (base.notice, f"an adapter over {base.names[0]}: {adapter.updates.description}")
    return replace(
        base,
        names=adapter.names,
        task_models=_task_models([adapter]),
        recipe=adapter.recipe,
        max_tokens=limit,
        fingerprint=adapter.fingerprint(base.fingerprint, limit),
        notice="; ".join(filter(None, notices)),
        weight_bytes=adapter.weight_bytes,
        adapter=number,
    )
