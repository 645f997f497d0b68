"""Requests settled against a model's card: what the worker is to do, or why it cannot. Knows no door."""

from dataclasses import replace

from frontend_service.domain.ranking_requests import MaxSimRequest, ScoreRequest
from frontend_service.domain.requests import EmbedRequest
from frontend_service.postprocess.token_pooling import pooled_count
from shared.card import ModelCard
from shared.errors import DimensionMismatch, InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Encode, MaxSim, Score
from shared.ragged import RaggedTokens
from shared.vectors import Activation, DataType, OutputKind, ScoringMethod, Task

SPARSE_PAIR_BYTES = 8
"""A vocabulary id and its weight."""


def encode_of(request: EmbedRequest, card: ModelCard) -> Encode:
    """The work that an Embed asks of the worker. Raises UnsupportedTask, UnsupportedDimensions."""
    check_task(card, Task.EMBED)
    fallback = OutputKind.DENSE if OutputKind.DENSE in card.outputs else card.outputs[0]
    outputs = request.outputs or (fallback,)
    for index, kind in enumerate(outputs):
        if kind not in card.outputs:
            known = ", ".join(output.name for output in card.outputs)
            raise UnsupportedTask(f"the model has no {kind.name} output; it has {known}", field=f"outputs[{index}]")
    rows = (OutputKind.DENSE, OutputKind.MULTI_VECTOR)
    for field, is_set, needed in (
        ("return_token_ids", request.return_token_ids, rows[1:]),
        ("pool_factor", request.pooling is not None, rows[1:]),
        ("sparse_top_k", request.sparse_top_k is not None, (OutputKind.SPARSE,)),
        ("dimensions", request.dimensions is not None, rows),
        ("normalize", request.normalize is not None, rows),
        ("data_type", request.data_type is not DataType.FLOAT32, rows),
    ):
        if is_set and not set(needed) & set(outputs):
            names = " or ".join(output.name for output in needed)
            raise InvalidInput(f"{field} needs the output {names}", field=field)
    for kind in outputs:
        _check_dimensions(request.dimensions, kind, card)
    encode = Encode(
        outputs=frozenset(outputs),
        dimensions=request.dimensions or 0,
        normalize=card.normalizes if request.normalize is None else request.normalize,
        normalize_tokens=card.normalizes_multi_vectors if request.normalize is None else request.normalize,
        data_type=request.data_type,
        sparse_top_k=request.sparse_top_k or 0,
        token_ids=request.return_token_ids,
        input_type=request.prompt.input_type,
    )
    if request.pooling:  # clusters are told from unit rows, whatever becomes of the means; packed when pooled
        return replace(encode, normalize_tokens=True, data_type=DataType.FLOAT32)
    return encode


def _check_dimensions(asked: int | None, kind: OutputKind, card: ModelCard) -> None:
    if asked is None or kind is OutputKind.SPARSE:
        return
    dense = kind is OutputKind.DENSE
    width = card.dimensions if dense else card.multi_vector_dimensions
    allowed = {*card.allowed_dimensions, width} if dense and card.allowed_dimensions else None
    if (allowed and asked not in allowed) or not 1 <= asked <= width:
        choice = ", ".join(map(str, sorted(allowed))) if allowed else f"1 to {width}"
        raise UnsupportedDimensions(
            f"dimensions is {asked}, {kind.name} of the model can have {choice}", field="dimensions"
        )


def method_of(request: ScoreRequest, card: ModelCard) -> ScoringMethod:
    """The method of a Score or Rerank. Raises UnsupportedTask, and InvalidInput for what it cannot explain."""
    check_task(card, Task.RERANK)
    method = request.method or card.default_method
    if method is None or method not in card.methods:
        known = ", ".join(method.name for method in card.methods)
        asked = "" if method is None else f" by {method.name}"
        raise UnsupportedTask(f"the model cannot score{asked}; it has {known}", field="method")
    if request.explain and method is not ScoringMethod.LATE_INTERACTION:
        raise InvalidInput(f"explain needs LATE_INTERACTION, the method is {method.name}", field="explain")
    return method


def score_of(request: ScoreRequest, method: ScoringMethod, card: ModelCard) -> Score:
    """The work that a Score by vectors asks of the worker."""
    late = method is ScoringMethod.LATE_INTERACTION
    mean = card.averages_late_interaction if request.normalize is None else request.normalize
    own = card.normalizes_multi_vectors and not request.raw_rows if late else True
    return Score(
        method=method,
        layout=request.layout,
        queries=len(request.queries),
        unit_rows=own if request.normalize is None else request.normalize,
        mean=late and mean,
        weights=request.weights,
        explain=request.explain,
    )


def max_sim_of(request: MaxSimRequest, card: ModelCard) -> MaxSim:
    """The work that a MaxSim asks of the worker. Given rows are taken as they are unless `normalize` says otherwise."""
    chosen = request.normalize
    own_mean = request.queries is None and card.averages_late_interaction
    return MaxSim(
        queries=request.queries,
        documents=request.documents,
        layout=request.layout,
        unit_rows=bool(chosen),
        unit_queries=card.normalizes_multi_vectors if chosen is None else chosen,
        mean=own_mean if chosen is None else chosen,
        explain=request.explain,
    )


def check_token_rows(card: ModelCard, dimensions: int) -> None:
    """Raises where token rows of the model cannot meet given ones: UnsupportedTask, DimensionMismatch."""
    if OutputKind.MULTI_VECTOR not in card.outputs:
        known = ", ".join(output.name for output in card.outputs) or "none"
        raise UnsupportedTask(f"the model has no token vectors; of outputs it has {known}", field="query_texts")
    if dimensions > card.multi_vector_dimensions:
        raise DimensionMismatch(
            f"documents have {dimensions} dimensions, the model's token rows {card.multi_vector_dimensions}",
            field="documents.dimensions",
        )


def activation_of(card: ModelCard, normalize: bool | None) -> Activation:
    """The activation that is applied to logits: by default the one that the files name."""
    if normalize is None:
        return card.activation
    if not normalize:
        return Activation.IDENTITY
    if card.activation is not Activation.IDENTITY:
        return card.activation
    return Activation.SIGMOID if len(card.labels) == 1 else Activation.SOFTMAX


def check_task(card: ModelCard, task: Task) -> None:
    """Raises UnsupportedTask."""
    if task not in card.tasks:
        known = ", ".join(served.name for served in card.tasks)
        raise UnsupportedTask(f"the model is not for {task.name}; it is for {known}", field="model")


def width_of(encode: Encode, card: ModelCard) -> int:
    """Dimensions of a token row."""
    return encode.dimensions or card.multi_vector_dimensions


def reply_bytes(request: EmbedRequest, encode: Encode, card: ModelCard, tokens: RaggedTokens) -> int:
    """Bytes of the vectors that an Embed would return; of sparse ones what is certain before they are there."""
    kind, sequences, payload = request.data_type, len(tokens), 8 * len(tokens)
    if OutputKind.DENSE in encode.outputs:
        payload += sequences * (kind.row_bytes(encode.dimensions or card.dimensions) + kind.scale_bytes)
    if OutputKind.MULTI_VECTOR in encode.outputs:
        rows, pooling = tokens.total, request.pooling
        if pooling:
            rows = sum(pooled_count(length, pooling.factor, pooling.protected) for length in tokens.lengths)
        row_bytes = kind.row_bytes(width_of(encode, card)) + kind.scale_bytes
        payload += rows * (row_bytes + 5 * encode.token_ids)
    if OutputKind.SPARSE in encode.outputs and encode.sparse_top_k:
        payload += sequences * min(encode.sparse_top_k, card.vocabulary_size) * SPARSE_PAIR_BYTES
    return payload
