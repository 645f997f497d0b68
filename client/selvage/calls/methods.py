"""The methods of both clients: a function each, with its signature and docstring. No I/O.

A function takes a client as `self` and returns the operation; a client's method runs it. `embed` and `embed_stream` are
in embed_methods.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from selvage.calls.embed_methods import HasSettings, embed, embed_stream
from selvage.calls.split_call import Operation
from selvage.errors import InvalidInput
from selvage.messages import enums
from selvage.messages.classification import Classify, ClassifyTokens
from selvage.messages.inputs import Inputs, checked_strings, checked_text, fields_set
from selvage.messages.model import Cards, TokenizeOrDetokenize
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
    """Ranks documents for one query: a list of `RankedDocument`, best first, `top_n` of them at most.

    `method`: "cross_encoder", "late_interaction", "dense", "sparse" or "hybrid", by default the model's own. `weights`:
    for "hybrid" only, such as {"dense": 1, "sparse": 0.3}. `return_documents`: put their text into the results.
    `normalize`, `instruction`, `max_tokens_per_query`, `max_tokens_per_document`, `truncate` and `explain` mean what
    ranking.proto says. `progress` and `timeout` are those of `embed`.

    More than 1,024 documents are scored in several requests. This changes scores by rounding only (1e-6), so documents
    of equal text may be ordered by their rounding instead of their place. Raises as `embed` does.
    """
    template = ranking_pb2.RerankRequest(
        model=model or self.settings.model,
        query=checked_text(query, "query"),
        top_n=top_n,
        method=enums.number_or_none(vectors_pb2.ScoringMethod, method, "method"),
        weights=weights_to_pb(weights),
        **fields_set(normalize=normalize, truncate=truncate),
        instruction=instruction,
        max_tokens_per_query=max_tokens_per_query,
        max_tokens_per_document=max_tokens_per_document,
        explain=explain,
    )
    texts, _ = checked_strings(_as_list(documents, "documents"), "documents")
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
    """Scores every query with every document: ndarray [queries, documents] float32.

    `pairs`: score query i with document i only, ndarray [pairs] float32. The other options are those of `rerank`. Large
    matrices are scored in blocks of 2,048 x 2,048. Raises as `embed` does.
    """
    template = ranking_pb2.ScoreRequest(
        model=model or self.settings.model,
        layout=vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX,
        method=enums.number_or_none(vectors_pb2.ScoringMethod, method, "method"),
        weights=weights_to_pb(weights),
        **fields_set(normalize=normalize, truncate=truncate),
        instruction=instruction,
        max_tokens_per_query=max_tokens_per_query,
        max_tokens_per_document=max_tokens_per_document,
    )
    left, _ = checked_strings(_as_list(queries, "queries"), "queries")
    right, _ = checked_strings(_as_list(documents, "documents"), "documents")
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
    """Computes MaxSim of multi-vectors that you have: ndarray [queries, documents] float32.

    `documents`: arrays [rows, dimensions], float16 or float32; other floats are sent as float32. `queries`: arrays of
    as many dimensions, or strings, which the model encodes as queries; `model`, `instruction`, `max_tokens_per_query`
    and `truncate` are for strings only. `pairs`: compare query i with document i only, ndarray [pairs] float32.
    `normalize`: scale rows to unit length and take the mean over query rows; else rows stay and the score is the sum.

    Large inputs are compared in blocks. Raises as `embed` does, and DimensionMismatch where dimensions differ.
    """
    texts = [query for query in queries if isinstance(query, str)]
    if isinstance(queries, str) or (texts and len(texts) != len(queries)):
        raise InvalidInput("queries are to be a list of arrays, or a list of strings", field="queries")
    template = ranking_pb2.MaxSimRequest(
        layout=vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX, **fields_set(normalize=normalize)
    )
    if texts:
        template.MergeFrom(
            ranking_pb2.MaxSimRequest(
                model=model or self.settings.model,
                instruction=instruction,
                max_tokens_per_query=max_tokens_per_query,
                **fields_set(truncate=truncate),
            )
        )
    left: list[Any] = list(texts) or [np.asarray(query) for query in queries]
    right = [np.asarray(document) for document in documents]
    return MaxSim(template, left, right, seconds=timeout, progress=progress)


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
    """Scores every label for each text: `Classes` with scores [texts, labels] float32, [labels] for a single string.

    `text_pairs`: the second text of each pair, as many as `texts`. `normalize`: True applies the model's activation,
    or sigmoid or softmax where it has none; False returns raw logits; by default as the model's files say. The other
    options are those of `embed`. Raises as `embed` does.
    """
    template = classification_pb2.ClassifyRequest(
        model=model or self.settings.model,
        **fields_set(prompt=prompt, prompt_name=prompt_name, normalize=normalize, truncate=truncate),
        max_tokens=max_tokens,
    )
    pairs, _ = checked_strings(text_pairs, "text_pairs")
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
    """Scores every label for each token: a list of `TokenClasses`, or one for a single string.

    `token_id`: score only tokens of this id, such as the mark behind each step in texts for a reward model. `normalize`
    is that of `classify`, the other options are those of `embed`. Raises as `embed` does.
    """
    side = enums.number_or_none(vectors_pb2.TruncationSide, truncation_side, "truncation_side")
    template = classification_pb2.ClassifyTokensRequest(
        model=model or self.settings.model,
        **fields_set(prompt=prompt, prompt_name=prompt_name, normalize=normalize, truncate=truncate),
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
    """Returns the tokens that `embed` would feed the model: a list of `TextTokens`, or one for a single string.

    The options are those of `embed`. Raises as `embed` does.
    """
    side = enums.number_or_none(vectors_pb2.TruncationSide, truncation_side, "truncation_side")
    template = model_pb2.TokenizeRequest(
        model=model or self.settings.model,
        input_type=enums.number_or_none(vectors_pb2.InputType, input_type, "input_type"),
        **fields_set(prompt=prompt, prompt_name=prompt_name, truncate=truncate),
        truncation_side=side,
        max_tokens=max_tokens,
    )
    return TokenizeOrDetokenize(template, _strings(texts), seconds=timeout)


def detokenize(
    self: HasSettings,
    ids: Sequence[int] | Iterable[Sequence[int]],
    *,
    model: str = "",
    skip_special_tokens: bool = False,
    timeout: float | None = None,
) -> Operation[Any]:
    """Turns token ids into text: a list of strings, or one for the ids of a single text. Raises as `embed` does."""
    inputs = Inputs.of(ids, "tokenized")
    if not inputs.tokenized:
        raise InvalidInput("wanted are token ids", field="tokenized")
    template = model_pb2.DetokenizeRequest(model=model or self.settings.model, skip_special_tokens=skip_special_tokens)
    return TokenizeOrDetokenize(template, inputs, seconds=timeout)


def model(self: HasSettings, name: str = "", *, timeout: float | None = None) -> Operation[ModelCard]:
    """Returns the card of a model, by default the client's own or the only one. Raises UnknownModel, Unavailable."""
    return Cards(model_pb2.GetModelRequest(model=name or self.settings.model), timeout)


def models(self: HasSettings, *, timeout: float | None = None) -> Operation[list[ModelCard]]:
    """Returns the cards of all models. Raises Unavailable where none is ready."""
    return Cards(model_pb2.ListModelsRequest(), timeout)


def _as_list(texts: Iterable[str], field: str) -> list[str]:
    """Texts as a list. Raises InvalidInput for a string, which would otherwise pass for a list of its letters."""
    if isinstance(texts, str):
        raise InvalidInput(f"{field} are to be a list of strings", field=field)
    return list(texts)


def _strings(texts: str | Iterable[str]) -> Inputs:
    entries, single = checked_strings(texts, "texts")
    return Inputs(entries=entries, tokenized=False, single=single)
