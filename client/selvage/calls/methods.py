"""The methods of both clients: a function each, with its signature and docstring. No I/O.

A function takes a client as `self` and returns the operation; a client's method runs it.
"""

import inspect
import textwrap
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Literal, Protocol, TypeVar, Unpack, get_args, get_type_hints, overload

import numpy as np

from selvage.calls.streamed_call import StreamedCall
from selvage.connection import Settings
from selvage.errors import InvalidInput
from selvage.messages import vectors
from selvage.messages.card import Cards
from selvage.messages.embedding import Embed
from selvage.messages.inputs import Inputs, Operation, Texts, checked_spans, checked_text
from selvage.messages.options import (
    DEFAULTS,
    ClassifyOptions,
    ClassifyTokensOptions,
    DetokenizeOptions,
    EmbedOptions,
    MaxSimOptions,
    ScoringOptions,
    TokenizeOptions,
    VectorOptions,
    enum_number,
    explanations,
    request_fields,
    with_defaults,
)
from selvage.messages.ranking import MaxSim, Rerank, Score
from selvage.messages.text_results import Classify, ClassifyTokens, Detokenize, Tokenize
from selvage.results import Array, Classes, Embeddings, ModelCard, RankedDocument
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2, vectors_pb2

F = TypeVar("F", bound=Callable[..., Any])
ERRORS = (
    "Raises InvalidInput or a subclass of it for an argument, which its `field` names (an entry of a list by its place "
    "in the whole list), and the other errors of `selvage.errors`; TypeError for an option that there is not."
)
"""The end of the docstrings of methods that have options."""


class HasSettings(Protocol):
    """What the methods need of a client: `Client`, `AsyncClient` and `Engine` have it."""

    settings: Settings


@overload
def embed(
    self: HasSettings, texts: str, *, spans: Sequence[tuple[int, int]], **options: Unpack[EmbedOptions]
) -> Operation[Array]: ...
@overload
def embed(
    self: HasSettings,
    texts: Iterable[str],
    *,
    spans: Sequence[Sequence[tuple[int, int]]],
    **options: Unpack[EmbedOptions],
) -> Operation[list[Array]]: ...
@overload
def embed(
    self: HasSettings, texts: Texts, *, output: Literal["dense"] = "dense", **options: Unpack[EmbedOptions]
) -> Operation[Array]: ...
@overload
def embed(
    self: HasSettings, texts: Texts, *, output: Literal["sparse", "multi_vector"], **options: Unpack[EmbedOptions]
) -> Operation[Any]: ...
@overload
def embed(
    self: HasSettings, texts: Texts, *, output: list[str] | tuple[str, ...], **options: Unpack[EmbedOptions]
) -> Operation[Embeddings]: ...
def embed(
    self: HasSettings,
    texts: Texts,
    *,
    output: str | Sequence[str] = "dense",
    spans: Sequence[Any] | None = None,
    **options: Unpack[EmbedOptions],
) -> Operation[Any]:
    """Computes vectors of texts.

    `texts`: strings, or lists of token ids, which include special tokens where these are wanted. As many as you like:
    they are sent in requests of at most 512 texts and 262,144 letters, several at a time; a token id counts as four
    letters. One bad text refuses the whole call. For a single string, or the ids of a single text, the result has no
    axis of texts, unless `output` is a list.

    `output` chooses what is returned:

    - "dense": ndarray [texts, dimensions] of `data_type`.
    - "multi_vector": a list with an ndarray [rows, dimensions] for each text.
    - "sparse": a list with a dict {token id: weight} for each text; with `sparse_format="csr"`, a
      `scipy.sparse.csr_array` [texts, vocabulary] of float32.
    - a list of these names: `Embeddings` with all of them from one forward pass, token counts, and the scales of int8.

    `spans`, for dense vectors of a model whose card has `pools_spans`, as `late_chunking` is: for each text, pairs of
    where a part of it starts and ends, in characters. The result is a list with an array [spans, dimensions] for each
    text; for a single string it is this array. In `Embeddings` all rows of `dense` lie end to end.
    """
    outputs = [output] if isinstance(output, str) else list(output)
    fields, call = _chosen(self, EmbedOptions, options)
    sparse_format = fields.pop("sparse_format", None)
    if sparse_format not in ("dict", "csr"):
        raise InvalidInput(f"sparse_format is {sparse_format!r}; there are dict, csr", field="sparse_format")
    inputs = Inputs.of(texts)
    alone = output if isinstance(output, str) else ""
    csr = sparse_format == "csr" and "sparse" in outputs
    return Embed(_embed_request(outputs, fields), inputs, alone, csr=csr, spans=checked_spans(spans, inputs), **call)


def embed_stream(
    self: HasSettings,
    texts: Iterable[str] | Iterable[Sequence[int]] | AsyncIterable[str] | AsyncIterable[Sequence[int]],
    *,
    output: str = "dense",
    batch_size: int = 64,
    **options: Unpack[VectorOptions],
) -> StreamedCall:
    """Yields the result of each text, in order, for any number of texts, also without end.

    `texts`: strings, or lists of token ids. They are read while results are taken, 32 batches ahead at most. An
    AsyncClient takes asynchronous iterators too. `output`: "dense" yields an ndarray [dimensions] for each text,
    "multi_vector" an ndarray [rows, dimensions], "sparse" a dict {token id: weight}; the scales of int8 are not
    returned.

    `batch_size`: how many texts are sent together; fewer where they have more than 32,768 letters. Choose a smaller one
    where texts come slowly: a batch waits until it is full, and results that have come are yielded when the next text
    has been read.

    A batch may take a day, and is sent again as a part of `embed` is. An error comes after the results of the texts
    before its batch. A generator that is closed before its end cancels what was sent.
    """
    if batch_size < 1:
        raise InvalidInput(f"batch_size is {batch_size}, must be at least 1", field="batch_size")
    fields = request_fields(**with_defaults(VectorOptions, options, self.settings.model))
    return StreamedCall(texts, _embed_request([output], fields), output, batch_texts=batch_size)


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
    - `explain`: for "late_interaction" only: return a `TokenMatch` for each query token that has a vector.
    - `return_documents`: put each document's text into its result.

    More than 1,024 documents, or 1,048,576 letters of documents, are scored in several requests. This changes scores by
    rounding only (1e-6), so documents of equal text may be ordered by their rounding instead of their place. A listwise
    reranker scores documents beside each other: it gets all of them in one request.
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

    Larger inputs are scored in blocks of at most 2,048 texts and 1,048,576 letters a side; pairs in runs of 2,048. A
    listwise reranker gets all documents in each request, with as many queries as make up 1,024 documents in all.
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
    **options: Unpack[MaxSimOptions],
) -> Operation[Array]:
    """Computes MaxSim of multi-vectors that you have: ndarray [queries, documents] float32.

    - `documents`: arrays [rows, dimensions], float16 or float32; other floats are sent as float32. A document without
      rows scores -1e9.
    - `queries`: arrays of as many dimensions, or strings, which the model encodes as queries. With strings, documents
      may have fewer dimensions than the model's token rows, which are then cut to these. Only they have a `model`, an
      `instruction`, and a limit of tokens.
    - `pairs`: compare query i with document i only, ndarray [pairs] float32; both sides then have one length.

    Larger inputs are compared in blocks of at most 1,024 arrays a side, of 4 MiB of queries and 8 MiB of documents.
    Raises DimensionMismatch where dimensions differ.
    """
    texts = [query for query in queries if isinstance(query, str)]
    if isinstance(queries, str) or (texts and len(texts) != len(queries)):
        raise InvalidInput("queries are to be a list of arrays, or a list of strings", field="queries")
    fields, call = _chosen(self, MaxSimOptions, options)
    if not texts:
        fields = {name: fields[name] for name in ("normalize",) if name in fields}
    template = ranking_pb2.MaxSimRequest(layout=_layout(pairs), **fields)
    left: list[Any] = list(texts) or [np.asarray(query) for query in queries]
    right = [np.asarray(document) for document in documents]
    if not texts:
        vectors.check_multi_vectors(left, "queries")
    vectors.check_multi_vectors(right, "documents")
    return MaxSim(template, left, right, **call)


def classify(
    self: HasSettings,
    texts: str | Iterable[str],
    text_pairs: str | Iterable[str] = (),
    **options: Unpack[ClassifyOptions],
) -> Operation[Classes]:
    """Scores every label for each text: `Classes` with scores [texts, labels] float32, [labels] for a single string.

    `text_pairs`: the second text of each pair, as many as `texts`. A yes/no reranker needs them. Texts are sent in
    requests of at most 512 texts and 262,144 letters.
    """
    fields, call = _chosen(self, ClassifyOptions, options)
    pairs = Inputs.strings(text_pairs, "text_pairs").entries
    return Classify(classification_pb2.ClassifyRequest(**fields), Inputs.strings(texts, "texts"), pairs=pairs, **call)


def classify_tokens(
    self: HasSettings, texts: str | Iterable[str], **options: Unpack[ClassifyTokensOptions]
) -> Operation[Any]:
    """Scores every label for each token: a list of `TokenClasses`, or one for a single string.

    Texts are sent in requests of at most 512 texts and 262,144 letters.
    """
    fields, call = _chosen(self, ClassifyTokensOptions, options)
    template = classification_pb2.ClassifyTokensRequest(**fields)
    return ClassifyTokens(template, Inputs.strings(texts, "texts"), **call)


def tokenize(self: HasSettings, texts: str | Iterable[str], **options: Unpack[TokenizeOptions]) -> Operation[Any]:
    """Returns the tokens that `embed` would feed the model: a list of `TextTokens`, or one for a single string.

    Texts are sent in requests of at most 512 texts and 262,144 letters.
    """
    fields, call = _chosen(self, TokenizeOptions, options)
    return Tokenize(model_pb2.TokenizeRequest(**fields), Inputs.strings(texts, "texts"), **call)


def detokenize(
    self: HasSettings, ids: Sequence[int] | Iterable[Sequence[int]], **options: Unpack[DetokenizeOptions]
) -> Operation[Any]:
    """Turns token ids into text: a list of strings, or one for the ids of a single text."""
    inputs = Inputs.of(ids, "tokenized")
    if not inputs.tokenized:
        raise InvalidInput("wanted are token ids", field="tokenized")
    fields, call = _chosen(self, DetokenizeOptions, options)
    return Detokenize(model_pb2.DetokenizeRequest(**fields), inputs, **call)


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


def _embed_request(outputs: Sequence[str], fields: Mapping[str, Any]) -> embedding_pb2.EmbedRequest:
    """An EmbedRequest without its texts. Raises InvalidInput for an output that is none."""
    numbers = [enum_number(vectors_pb2.OutputKind, output, "output") for output in outputs]
    return embedding_pb2.EmbedRequest(outputs=numbers, **fields)


def _layout(pairs: bool) -> vectors_pb2.Layout:
    return vectors_pb2.LAYOUT_PAIRS if pairs else vectors_pb2.LAYOUT_MATRIX


def as_method(run: F, method: Callable[..., Any]) -> F:
    """Returns `run` with the signature and docstring of `method`, both with all options.

    `method` returns an Operation[R] and `run` its result, so the signature that is shown returns R.
    """
    update_wrapper(run, method)
    signature = inspect.signature(method)
    returned = next(iter(get_args(signature.return_annotation)), Any)
    client, *parameters = signature.parameters.values()
    shown = [client.replace(annotation=inspect.Parameter.empty)]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)[0]
            shown += _parameters(options)
            run.__doc__ = _explained(method, options)
        else:
            shown.append(parameter)
    run.__signature__ = signature.replace(parameters=shown, return_annotation=returned)  # type: ignore[attr-defined]
    return run


def _parameters(options: Any) -> list[inspect.Parameter]:
    """A parameter for each option of a TypedDict."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=hint)
        for name, hint in get_type_hints(options).items()
    ]


def _explained(method: Callable[..., Any], options: Any) -> str:
    """The docstring of a method, with what each option of a TypedDict means, and what all methods raise."""
    lines = (f"- `{name}`: {meaning}." for name, meaning in explanations(options).items())
    explained = "\n".join(textwrap.fill(line, 100, subsequent_indent="  ") for line in lines)
    return f"{inspect.getdoc(method)}\n\nOptions:\n\n{explained}\n\n{textwrap.fill(ERRORS, 100)}"
