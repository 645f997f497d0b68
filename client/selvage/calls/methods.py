"""The methods of both clients: a function each, with its signature and docstring. No I/O.

A function takes a client as `self` and returns the operation; a client's method runs it. `embed` and `embed_stream` are
in embed_methods.py.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, TypeVar, Unpack, get_args, get_type_hints

import numpy as np

from selvage.calls.embed_methods import HasSettings, embed, embed_stream
from selvage.errors import InvalidInput
from selvage.messages import vectors
from selvage.messages.card import Cards
from selvage.messages.inputs import Inputs, Operation, checked_text
from selvage.messages.options import (
    DEFAULTS,
    ClassifyOptions,
    ClassifyTokensOptions,
    ScoringOptions,
    TokenizeOptions,
    request_fields,
    with_defaults,
)
from selvage.messages.ranking import MaxSim, Rerank, Score
from selvage.messages.text_results import Classify, ClassifyTokens, Detokenize, Tokenize
from selvage.results import Array, Classes, ModelCard, RankedDocument
from selvage.v1 import classification_pb2, model_pb2, ranking_pb2, vectors_pb2

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "as_method",
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
    top_n: int | None = None,
    return_documents: bool = False,
    explain: bool = False,
    **options: Unpack[ScoringOptions],
) -> Operation[list[RankedDocument]]:
    """Ranks documents for one query: a list of `RankedDocument`, best first.

    - `documents`: strings, at least one. `top_n`: return this many, by default all.
    - `model`: the model's name, by default the client's, else the only one.
    - `method`: "cross_encoder", "listwise", "late_interaction", "dense", "sparse" or "hybrid", by default the model's
      own.
    - `weights`: for "hybrid" only, such as {"dense": 1, "sparse": 0.3, "multi_vector": 1}; they are divided by their
      sum. An output that is not named weighs nothing; by default all weigh the same.
    - `normalize`: True compares rows of unit length, takes the mean over the query's tokens and applies a
      cross-encoder's activation; False compares rows as the model makes them, takes the sum and returns the logit. By
      default "late_interaction" and "cross_encoder" do as the model's files say, "dense" and "hybrid" as for True.
      Scores of "listwise" are cosines either way.
    - `instruction`: put before the query instead of the model's own prompt or marker; in the template of a yes/no
      reranker and in the text of a listwise one, what it calls the instruction.
    - `max_tokens_per_query`, `max_tokens_per_document`: lower limits than the model's, in tokens. They count special
      tokens, except for "cross_encoder" and "listwise", and never query expansion.
    - `truncate`: True cuts texts that are over a limit; False refuses them. By default they are refused, unless the
      frontend runs with `--auto-truncate`.
    - `explain`: for "late_interaction" only: return a `TokenMatch` for each query token that has a vector.
    - `return_documents`: put each document's text into its result.
    - `progress`: show how far the call is. `timeout`: seconds for the whole call, by default the client's.

    More than 1,024 documents, or 1,048,576 letters of documents, are scored in several requests. This changes scores by
    rounding only (1e-6), so documents of equal text may be ordered by their rounding instead of their place. A listwise
    reranker scores documents beside each other: it gets all of them in one request.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    fields, call = _chosen(self, ScoringOptions, options)
    query = checked_text(query, "query")
    template = ranking_pb2.RerankRequest(query=query, top_n=top_n, explain=explain, **fields)
    texts = Inputs.strings(documents, "documents", single=False).entries
    return Rerank(template, texts, return_documents=return_documents, **call)


def score(
    self: HasSettings,
    queries: Iterable[str],
    documents: Iterable[str],
    *,
    pairs: bool = False,
    **options: Unpack[ScoringOptions],
) -> Operation[Array]:
    """Scores every query with every document: ndarray [queries, documents] float32, larger is better.

    - `queries`, `documents`: strings, at least one of each.
    - `pairs`: score query i with document i only, ndarray [pairs] float32; both sides then have one length.
    - `model`: the model's name, by default the client's, else the only one.
    - `method`, `weights`, `normalize`, `instruction`, `max_tokens_per_query`, `max_tokens_per_document`, `truncate`: as
      in `rerank`.
    - `progress`: show how far the call is. `timeout`: seconds for the whole call, by default the client's.

    Larger inputs are scored in blocks of at most 2,048 texts and 1,048,576 letters a side; pairs in runs of 2,048. A
    listwise reranker gets all documents in each request, with as many queries as make up 1,024 documents in all.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    fields, call = _chosen(self, ScoringOptions, options)
    template = ranking_pb2.ScoreRequest(layout=_layout(pairs), **fields)
    left = Inputs.strings(queries, "queries", single=False).entries
    right = Inputs.strings(documents, "documents", single=False).entries
    return Score(template, left, right, **call)


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

    - `documents`: arrays [rows, dimensions], float16 or float32; other floats are sent as float32. A document without
      rows scores -1e9.
    - `queries`: arrays of as many dimensions, or strings, which the model encodes as queries. With strings, documents
      may have fewer dimensions than the model's token rows, which are then cut to these.
    - `pairs`: compare query i with document i only, ndarray [pairs] float32; both sides then have one length.
    - `normalize`: True scales the rows of both sides to unit length and takes the mean over query rows; False leaves
      all rows as they are and takes the sum. By default as False where queries are arrays; where they are strings, the
      model's files say whether query rows get unit length, and whether the score is the sum or the mean.
    - `model`, `instruction`, `max_tokens_per_query`, `truncate`: for strings only, as in `rerank`.
    - `progress`: show how far the call is. `timeout`: seconds for the whole call, by default the client's.

    Larger inputs are compared in blocks of at most 1,024 arrays a side, of 4 MiB of queries and 8 MiB of documents.

    Raises DimensionMismatch where dimensions differ, InvalidInput or another subclass of it for an argument, which its
    `field` names, and the other errors of `selvage.errors`.
    """
    texts = [query for query in queries if isinstance(query, str)]
    if isinstance(queries, str) or (texts and len(texts) != len(queries)):
        raise InvalidInput("queries are to be a list of arrays, or a list of strings", field="queries")
    fields: dict[str, Any] = {"normalize": normalize}
    if texts:
        fields |= {"model": model or self.settings.model, "instruction": instruction, "truncate": truncate}
        fields["max_tokens_per_query"] = max_tokens_per_query
    template = ranking_pb2.MaxSimRequest(layout=_layout(pairs), **request_fields(**fields))
    left: list[Any] = list(texts) or [np.asarray(query) for query in queries]
    right = [np.asarray(document) for document in documents]
    if not texts:
        vectors.check_multi_vectors(left, "queries")
    vectors.check_multi_vectors(right, "documents")
    return MaxSim(template, left, right, seconds=timeout, progress=progress)


def classify(
    self: HasSettings,
    texts: str | Iterable[str],
    text_pairs: str | Iterable[str] = (),
    **options: Unpack[ClassifyOptions],
) -> Operation[Classes]:
    """Scores every label for each text: `Classes` with scores [texts, labels] float32, [labels] for a single string.

    - `text_pairs`: the second text of each pair, as many as `texts`. A yes/no reranker needs them.
    - `model`: the model's name, by default the client's, else the only one.
    - `prompt`: put before each text; an empty one means no prompt. In the template of a yes/no reranker, what it calls
      the instruction. `prompt_name`: uses a prompt of the model's files.
    - `normalize`: True applies the model's activation, or sigmoid (one label) or softmax where it has none; False
      returns logits. By default as the model's files say.
    - `truncate`: True cuts texts that are over the limit; False refuses them. By default they are refused, unless the
      frontend runs with `--auto-truncate`. `max_tokens`: a lower limit than the model's.
    - `progress`: show how far the call is. `timeout`: seconds for the whole call, by default the client's.

    Texts are sent in requests of at most 512 texts and 262,144 letters.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    fields, call = _chosen(self, ClassifyOptions, options)
    pairs = Inputs.strings(text_pairs, "text_pairs").entries
    return Classify(classification_pb2.ClassifyRequest(**fields), Inputs.strings(texts, "texts"), pairs=pairs, **call)


def classify_tokens(
    self: HasSettings, texts: str | Iterable[str], **options: Unpack[ClassifyTokensOptions]
) -> Operation[Any]:
    """Scores every label for each token: a list of `TokenClasses`, or one for a single string.

    - `token_id`: score only tokens of this id, such as the mark behind each step in texts for a reward model. By
      default all tokens, special ones included.
    - `model`: the model's name, by default the client's, else the only one.
    - `prompt`: put before each text; an empty one means no prompt. `prompt_name`: uses a prompt of the model's files.
    - `normalize`: True applies the model's activation, or sigmoid (one label) or softmax where it has none; False
      returns logits. By default as the model's files say.
    - `truncate`: True cuts texts that are over the limit, at the side `truncation_side` ("left" or "right", by default
      the model's); False refuses them. By default they are refused, unless the frontend runs with `--auto-truncate`.
    - `max_tokens`: a lower limit than the model's.
    - `progress`: show how far the call is. `timeout`: seconds for the whole call, by default the client's.

    Texts are sent in requests of at most 512 texts and 262,144 letters.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    fields, call = _chosen(self, ClassifyTokensOptions, options)
    template = classification_pb2.ClassifyTokensRequest(**fields)
    return ClassifyTokens(template, Inputs.strings(texts, "texts"), **call)


def tokenize(self: HasSettings, texts: str | Iterable[str], **options: Unpack[TokenizeOptions]) -> Operation[Any]:
    """Returns the tokens that `embed` would feed the model: a list of `TextTokens`, or one for a single string.

    - `model`: the model's name, by default the client's, else the only one.
    - `input_type`, `prompt`, `prompt_name`, `truncate`, `truncation_side`, `max_tokens`: as in `embed`.
    - `timeout`: seconds for the whole call, by default the client's.

    Texts are sent in requests of at most 512 texts and 262,144 letters.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    fields, call = _chosen(self, TokenizeOptions, options)
    return Tokenize(model_pb2.TokenizeRequest(**fields), Inputs.strings(texts, "texts"), **call)


def detokenize(
    self: HasSettings,
    ids: Sequence[int] | Iterable[Sequence[int]],
    *,
    model: str = "",
    input_type: str | None = None,
    skip_special_tokens: bool = False,
    timeout: float | None = None,
) -> Operation[Any]:
    """Turns token ids into text: a list of strings, or one for the ids of a single text.

    - `model`: the model's name, by default the client's, else the only one.
    - `input_type`: "query" or "document", for models that read the two with different tokenizers.
    - `skip_special_tokens`: leave special tokens out.
    - `timeout`: seconds for the whole call, by default the client's.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names, and the other errors of
    `selvage.errors`.
    """
    inputs = Inputs.of(ids, "tokenized")
    if not inputs.tokenized:
        raise InvalidInput("wanted are token ids", field="tokenized")
    template = model_pb2.DetokenizeRequest(
        model=model or self.settings.model,
        skip_special_tokens=skip_special_tokens,
        **request_fields(input_type=input_type),
    )
    return Detokenize(template, inputs, seconds=timeout)


def model(self: HasSettings, name: str = "", *, timeout: float | None = None) -> Operation[ModelCard]:
    """Returns the card of a model, by default the client's own or the only one; `timeout` in seconds.

    Raises UnknownModel, Unavailable where no worker is ready, and the other errors of `selvage.errors`.
    """
    return Cards(model_pb2.GetModelRequest(model=name or self.settings.model), timeout)


def models(self: HasSettings, *, timeout: float | None = None) -> Operation[list[ModelCard]]:
    """Returns the cards of all models; `timeout` in seconds.

    Raises Unavailable where none is ready, and the other errors of `selvage.errors`.
    """
    return Cards(model_pb2.ListModelsRequest(), timeout)


def _chosen(self: HasSettings, kind: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a request from the options of a call, and how long it may take and whether to show how far it is.

    `kind`: the TypedDict of the options. Raises InvalidInput, and TypeError for an option that there is not.
    """
    chosen = with_defaults(kind, options, self.settings.model)
    call = {"seconds": chosen.pop("timeout"), "progress": chosen.pop("progress", False)}
    return request_fields(**chosen), call


def _layout(pairs: bool) -> vectors_pb2.Layout:
    return vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX


def as_method(run: F, method: Callable[..., Any]) -> F:
    """Returns `run` with the signature and docstring of `method`.

    `method` returns an Operation[R] and `run` its result, so the signature that is shown returns R and has all options.
    """
    update_wrapper(run, method)
    signature = inspect.signature(method)
    returned = next(iter(get_args(signature.return_annotation)), Any)
    client, *parameters = signature.parameters.values()
    shown = [client.replace(annotation=inspect.Parameter.empty)]
    for parameter in parameters:
        shown += [parameter] if parameter.kind is not parameter.VAR_KEYWORD else _options(parameter.annotation)
    run.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
    return run


def _options(unpacked: Any) -> list[inspect.Parameter]:
    """A parameter for each option of an `Unpack[TypedDict]`."""
    hints = get_type_hints(get_args(unpacked)[0])
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=hint)
        for name, hint in hints.items()
    ]
