"""Options of requests, checked against the model's card: the work for a worker, or the error. Knows no API."""

from collections.abc import Sequence
from dataclasses import replace

from frontend_service.domain.requests import EmbedRequest, MaxSimRequest, ScoreRequest
from shared.card import ModelCard
from shared.errors import DimensionMismatch, InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Encode, MaxSim, Score
from shared.vectors import Activation, DataType, OutputKind, ScoringMethod, Task


def encode(request: EmbedRequest, card: ModelCard) -> Encode:
    """Resolves an Embed. Raises UnsupportedTask, UnsupportedDimensions, and InvalidInput for options without effect."""
    check_task(card, Task.EMBED)
    fallback = OutputKind.DENSE if OutputKind.DENSE in card.outputs else card.outputs[0]
    outputs = request.outputs or (fallback,)
    for index, kind in enumerate(outputs):
        if kind not in card.outputs:
            served = ", ".join(output.name for output in card.outputs)
            raise UnsupportedTask(f"the model has no {kind.name} output; it has {served}", field=f"outputs[{index}]")
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
    if request.span_pooling:
        _check_span_pooling(request.span_pooling.field, outputs, card)
    for kind in outputs:
        _check_dimensions(request.dimensions, kind, card)
    work = Encode(
        outputs=frozenset(outputs),
        dimensions=request.dimensions or 0,
        normalize=card.normalizes if request.normalize is None else request.normalize,
        normalize_tokens=card.normalizes_multi_vectors if request.normalize is None else request.normalize,
        data_type=request.data_type,
        sparse_top_k=request.sparse_top_k or 0,
        token_ids=request.return_token_ids,
        input_type=request.prompt.input_type,
    )
    if request.pooling:  # rows are clustered at unit length, whatever becomes of the means, and packed afterwards
        return replace(work, normalize_tokens=True, data_type=DataType.FLOAT32)
    return work


def _check_span_pooling(field: str, outputs: Sequence[OutputKind], card: ModelCard) -> None:
    """Raises UnsupportedTask where the model pools no spans; InvalidInput for other outputs."""
    if set(outputs) != {OutputKind.DENSE}:
        names = ", ".join(output.name for output in outputs)
        raise InvalidInput(f"{field} needs the output DENSE alone, not {names}", field=field)
    certain = [mode for mode in card.pooling.split("+") if mode in ("cls", "lasttoken")]
    if certain:
        why = f"the model's pooling is {' and '.join(certain)}, which takes one certain token of a whole text"
        raise UnsupportedTask(f"{field} needs a pooling of any tokens; {why}", field=field)
    if not card.pools_spans:
        raise UnsupportedTask(f"{field} needs a pooling of any tokens, which this model has not", field=field)


def _check_dimensions(dimensions: int | None, kind: OutputKind, card: ModelCard) -> None:
    if dimensions is None or kind is OutputKind.SPARSE:
        return
    dense = kind is OutputKind.DENSE
    width = card.dimensions if dense else card.multi_vector_dimensions
    allowed = {*card.allowed_dimensions, width} if dense and card.allowed_dimensions else None
    if (allowed and dimensions not in allowed) or not 1 <= dimensions <= width:
        choice = ", ".join(map(str, sorted(allowed))) if allowed else f"1 to {width}"
        raise UnsupportedDimensions(
            f"dimensions is {dimensions}, {kind.name} of the model can have {choice}", field="dimensions"
        )


def scoring_method(request: ScoreRequest, card: ModelCard) -> ScoringMethod:
    """Resolves how a Score or Rerank compares. Raises UnsupportedTask, and InvalidInput if it cannot be explained."""
    check_task(card, Task.RERANK)
    method = request.method or card.default_method
    if method is None or method not in card.methods:
        methods = ", ".join(method.name for method in card.methods)
        wanted = "" if method is None else f" by {method.name}"
        raise UnsupportedTask(f"the model cannot score{wanted}; it has {methods}", field="method")
    if request.explain and method is not ScoringMethod.LATE_INTERACTION:
        raise InvalidInput(f"explain needs LATE_INTERACTION, the method is {method.name}", field="explain")
    return method


def score(request: ScoreRequest, method: ScoringMethod, card: ModelCard) -> Score:
    """Resolves a Score or Rerank whose method compares vectors."""
    late = method is ScoringMethod.LATE_INTERACTION
    normalize = request.normalization.normalize
    mean = card.averages_late_interaction if normalize is None else normalize
    unit_by_default = card.normalizes_multi_vectors and not request.normalization.raw_token_rows if late else True
    return Score(
        method=method,
        layout=request.layout,
        queries=len(request.queries),
        unit_rows=unit_by_default if normalize is None else normalize,
        mean=late and mean,
        weights=request.weights,
        explain=request.explain,
    )


def max_sim(request: MaxSimRequest, card: ModelCard) -> MaxSim:
    """Resolves a MaxSim. The request's vectors are taken as they are unless `normalize` says otherwise."""
    normalize = request.normalize
    mean_by_default = request.queries is None and card.averages_late_interaction
    return MaxSim(
        queries=request.queries,
        documents=request.documents,
        layout=request.layout,
        unit_rows=bool(normalize),
        unit_queries=card.normalizes_multi_vectors if normalize is None else normalize,
        mean=mean_by_default if normalize is None else normalize,
        explain=request.explain,
    )


def check_token_rows(card: ModelCard, dimensions: int) -> None:
    """Checks that the model's token rows can be compared with rows of a request that have so many dimensions.

    Raises UnsupportedTask, DimensionMismatch.
    """
    if OutputKind.MULTI_VECTOR not in card.outputs:
        outputs = ", ".join(output.name for output in card.outputs) or "none"
        raise UnsupportedTask(f"the model has no token vectors; of outputs it has {outputs}", field="query_texts")
    if dimensions > card.multi_vector_dimensions:
        raise DimensionMismatch(
            f"documents have {dimensions} dimensions, the model's token rows {card.multi_vector_dimensions}",
            field="documents.dimensions",
        )


def activation(card: ModelCard, activate: bool | None) -> Activation:
    """Resolves the activation of logits. None: what the model's files name, which may be none at all."""
    if activate is None:
        return card.activation
    if not activate:
        return Activation.IDENTITY
    if card.activation is not Activation.IDENTITY:
        return card.activation
    return Activation.SIGMOID if len(card.labels) == 1 else Activation.SOFTMAX


def check_task(card: ModelCard, task: Task) -> None:
    """Raises UnsupportedTask where the model is not for that task."""
    if task not in card.tasks:
        tasks = ", ".join(served.name for served in card.tasks)
        raise UnsupportedTask(f"the model is not for {task.name}; it is for {tasks}", field="model")
