"""What both clients can be asked beside `embed`: one signature and one docstring each. No I/O.

A function here takes a client as `self` and returns the operation; the clients make methods of them that run it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from selvage.calls.embed_methods import HasSettings, embed, embed_stream
from selvage.calls.split_call import Operation
from selvage.errors import InvalidInput
from selvage.messages import enums
from selvage.messages.classification import Classify, ClassifyTokens
from selvage.messages.inputs import Inputs, given, strings, text
from selvage.messages.model import Cards, InParts
from selvage.messages.ranking import MaxSim, Rerank, Score, weights_to_pb
from selvage.model_card import ModelCard
from selvage.results import Array, Classes, RankedDocument
from selvage.v1 import classification_pb2, model_pb2, ranking_pb2, vectors_pb2

__all__ = [
    "classify",
    "classify_tokens",
    "detokenize",
    "embed",
    "embed_stream",
    "max_sim",
    "model",
    "models",
    "rerank",
    "score",
    "tokenize",
]


def rerank(
    self: HasSettings,
    query: str,
    documents: Iterable[str],
    *,
    model: str = "",
    top_n: int | None = None,
    method: str | None = None,
    weights: Mapping[str, float] | None = None,
    return_documents: bool = False,
    normalize: bool | None = None,
    instruction: str | None = None,
    max_tokens_per_query: int | None = None,
    max_tokens_per_document: int | None = None,
    truncate: bool | None = None,
    explain: bool = False,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[list[RankedDocument]]:
    """Documents for one query, best first: a list of `RankedDocument`, `top_n` of them at most.

    `method`: "cross_encoder", "late_interaction", "dense", "sparse" or "hybrid", by default the model's own. `weights`:
    of "hybrid" only, such as {"dense": 1, "sparse": 0.3}. `return_documents`: results carry their text. `normalize`,
    `instruction`, `max_tokens_per_query`, `max_tokens_per_document`, `truncate` and `explain` mean what they mean in
    ranking.proto. `progress` and `timeout` as in `embed`.

    Over 1,024 documents are scored in several requests. Scores do not change by that beyond rounding (1e-6), which may
    order documents of equal text by their rounding instead of their place. Raises as `embed` does.
    """
    template = ranking_pb2.RerankRequest(
        model=model or self.settings.model,
        query=text(query, "query"),
        top_n=top_n,
        method=enums.number_or_none(vectors_pb2.ScoringMethod, method, "method"),
        weights=weights_to_pb(weights),
        **given(normalize=normalize, truncate=truncate),
        instruction=instruction,
        max_tokens_per_query=max_tokens_per_query,
        max_tokens_per_document=max_tokens_per_document,
        explain=explain,
    )
    texts, _ = strings(_many(documents, "documents"), "documents")
    return Rerank(template, texts, return_documents=return_documents, seconds=timeout, progress=progress)


def score(
    self: HasSettings,
    queries: Iterable[str],
    documents: Iterable[str],
    *,
    pairs: bool = False,
    model: str = "",
    method: str | None = None,
    weights: Mapping[str, float] | None = None,
    normalize: bool | None = None,
    instruction: str | None = None,
    max_tokens_per_query: int | None = None,
    max_tokens_per_document: int | None = None,
    truncate: bool | None = None,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[Array]:
    """Scores of every query with every document: ndarray [queries, documents] float32.

    `pairs`: of query i with document i instead, ndarray [pairs] float32. The other options are those of `rerank`. Large
    matrices are scored in blocks of 2,048 x 2,048. Raises as `embed` does.
    """
    template = ranking_pb2.ScoreRequest(
        model=model or self.settings.model,
        layout=vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX,
        method=enums.number_or_none(vectors_pb2.ScoringMethod, method, "method"),
        weights=weights_to_pb(weights),
        **given(normalize=normalize, truncate=truncate),
        instruction=instruction,
        max_tokens_per_query=max_tokens_per_query,
        max_tokens_per_document=max_tokens_per_document,
    )
    left, _ = strings(_many(queries, "queries"), "queries")
    right, _ = strings(_many(documents, "documents"), "documents")
    return Score(template, left, right, seconds=timeout, progress=progress)


def max_sim(
    self: HasSettings,
    queries: Sequence[Any],
    documents: Sequence[Any],
    *,
    pairs: bool = False,
    normalize: bool | None = None,
    model: str = "",
    instruction: str | None = None,
    max_tokens_per_query: int | None = None,
    truncate: bool | None = None,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[Array]:
    """MaxSim of multi-vectors that you have: ndarray [queries, documents] float32.

    `documents`: arrays [rows, dimensions], float16 or float32; other floats are sent as float32. `queries`: the same,
    of as many dimensions, or strings, which the model encodes as queries; `model`, `instruction`,
    `max_tokens_per_query` and `truncate` are about those. `pairs`: of query i with document i instead, ndarray [pairs]
    float32. `normalize`: unit rows and the mean over query rows, instead of rows as given and the sum.

    Large inputs are compared in blocks. Raises as `embed` does; DimensionMismatch where widths differ.
    """
    texts = [each for each in queries if isinstance(each, str)]
    if isinstance(queries, str) or (texts and len(texts) != len(queries)):
        raise InvalidInput("queries are to be a list of arrays, or a list of strings", field="queries")
    template = ranking_pb2.MaxSimRequest(
        layout=vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX, **given(normalize=normalize)
    )
    if texts:
        template.MergeFrom(
            ranking_pb2.MaxSimRequest(
                model=model or self.settings.model,
                instruction=instruction,
                max_tokens_per_query=max_tokens_per_query,
                **given(truncate=truncate),
            )
        )
    left: list[Any] = list(texts) or [np.asarray(each) for each in queries]
    return MaxSim(template, left, [np.asarray(each) for each in documents], seconds=timeout, progress=progress)


def classify(
    self: HasSettings,
    texts: str | Iterable[str],
    text_pairs: str | Iterable[str] = (),
    *,
    model: str = "",
    prompt: str | None = None,
    prompt_name: str | None = None,
    normalize: bool | None = None,
    truncate: bool | None = None,
    max_tokens: int | None = None,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[Classes]:
    """Scores of every label: `Classes` with scores [texts, labels] float32, or [labels] of a single string.

    `text_pairs`: the second text of each, as many as `texts`. `normalize`: True: the model's activation, else sigmoid
    or softmax; False: raw logits; by default as the model's files say. The other options are those of `embed`. Raises
    as `embed` does.
    """
    template = classification_pb2.ClassifyRequest(
        model=model or self.settings.model,
        **given(prompt=prompt, prompt_name=prompt_name, normalize=normalize, truncate=truncate),
        max_tokens=max_tokens,
    )
    pairs, _ = strings(text_pairs, "text_pairs")
    return Classify(template, _strings(texts), pairs, seconds=timeout, progress=progress)


def classify_tokens(
    self: HasSettings,
    texts: str | Iterable[str],
    *,
    model: str = "",
    prompt: str | None = None,
    prompt_name: str | None = None,
    token_id: int | None = None,
    normalize: bool | None = None,
    truncate: bool | None = None,
    truncation_side: str | None = None,
    max_tokens: int | None = None,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[Any]:
    """Scores of every label for each token: a list of `TokenClasses`, or one of a single string.

    `token_id`: only tokens of this id, such as the step mark of a reward model. `normalize` as in `classify`, the other
    options as in `embed`. Raises as `embed` does.
    """
    side = enums.number_or_none(vectors_pb2.TruncationSide, truncation_side, "truncation_side")
    template = classification_pb2.ClassifyTokensRequest(
        model=model or self.settings.model,
        **given(prompt=prompt, prompt_name=prompt_name, normalize=normalize, truncate=truncate),
        token_id=token_id,
        truncation_side=side,
        max_tokens=max_tokens,
    )
    return ClassifyTokens(template, _strings(texts), seconds=timeout, progress=progress)


def tokenize(
    self: HasSettings,
    texts: str | Iterable[str],
    *,
    model: str = "",
    input_type: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncate: bool | None = None,
    truncation_side: str | None = None,
    max_tokens: int | None = None,
    timeout: float | None = None,
) -> Operation[Any]:
    """The tokens that `embed` would feed the model: a list of `TextTokens`, or one of a single string.

    The options are those of `embed`. Raises as `embed` does.
    """
    side = enums.number_or_none(vectors_pb2.TruncationSide, truncation_side, "truncation_side")
    template = model_pb2.TokenizeRequest(
        model=model or self.settings.model,
        input_type=enums.number_or_none(vectors_pb2.InputType, input_type, "input_type"),
        **given(prompt=prompt, prompt_name=prompt_name, truncate=truncate),
        truncation_side=side,
        max_tokens=max_tokens,
    )
    return InParts(template, _strings(texts), seconds=timeout)


def detokenize(
    self: HasSettings,
    ids: Sequence[int] | Iterable[Sequence[int]],
    *,
    model: str = "",
    skip_special_tokens: bool = False,
    timeout: float | None = None,
) -> Operation[Any]:
    """Token ids as text: a list of strings, or one string for the ids of a single text. Raises as `embed` does."""
    inputs = Inputs.of(ids, "tokenized")
    if not inputs.tokenized:
        raise InvalidInput("wanted are token ids", field="tokenized")
    template = model_pb2.DetokenizeRequest(model=model or self.settings.model, skip_special_tokens=skip_special_tokens)
    return InParts(template, inputs, seconds=timeout)


def model(self: HasSettings, name: str = "", *, timeout: float | None = None) -> Operation[ModelCard]:
    """The card of a model, by default of the client's own or the only one. Raises UnknownModel, Unavailable."""
    return Cards(model_pb2.GetModelRequest(model=name or self.settings.model), timeout)


def models(self: HasSettings, *, timeout: float | None = None) -> Operation[list[ModelCard]]:
    """The cards of all models. Raises Unavailable where none is ready."""
    return Cards(model_pb2.ListModelsRequest(), timeout)


def _many(texts: Iterable[str], field: str) -> list[str]:
    """A string would pass for its letters."""
    if isinstance(texts, str):
        raise InvalidInput(f"{field} are to be a list of strings", field=field)
    return list(texts)


def _strings(texts: str | Iterable[str]) -> Inputs:
    entries, single = strings(texts, "texts")
    return Inputs(entries=entries, tokenized=False, single=single)
