"""`embed` and `embed_stream` as both clients have them: one signature and one docstring each. No I/O."""

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, overload

from selvage.calls.retries import RetryPolicy
from selvage.calls.split_call import Operation
from selvage.calls.streamed_call import Streaming
from selvage.connection import Settings
from selvage.errors import InvalidInput
from selvage.messages.embedding import Embed, One, Template
from selvage.messages.inputs import Inputs, Texts
from selvage.results import Array, Embeddings


class HasSettings(Protocol):
    """Either client."""

    settings: Settings


class EmbedOptions(TypedDict, total=False):
    """Options of `embed` whatever the output, for type checkers; `embed` explains them."""

    model: str
    input_type: Literal["query", "document"] | None
    prompt: str | None
    prompt_name: str | None
    dimensions: int | None
    normalize: bool | None
    data_type: str
    truncate: bool | None
    truncation_side: Literal["left", "right"] | None
    max_tokens: int | None
    sparse_top_k: int | None
    sparse_format: Literal["dict", "csr"]
    return_token_ids: bool
    pool_factor: float | None
    protected_tokens: int | None
    progress: bool
    timeout: float | None


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
    model: str = "",
    input_type: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    data_type: str = "float32",
    truncate: bool | None = None,
    truncation_side: str | None = None,
    max_tokens: int | None = None,
    sparse_top_k: int | None = None,
    sparse_format: str = "dict",
    return_token_ids: bool = False,
    pool_factor: float | None = None,
    protected_tokens: int | None = None,
    progress: bool = False,
    timeout: float | None = None,
) -> Operation[Any]:
    """Vectors of texts.

    `texts`: strings, or lists of token ids (special tokens included where wanted), as many as you like: they are sent
    in requests of 512 at most, several at a time. A single string, or the ids of a single text, gives its result
    alone, without the axis of texts; where `output` is a list the axis stays.

    `output` says what comes back:

    - "dense": ndarray [texts, dimensions] of `data_type`.
    - "multi_vector": a list of ndarrays [rows, dimensions], one a text.
    - "sparse": a list of dicts {token id: weight}; with `sparse_format="csr"` (needs scipy) a `scipy.sparse.csr_array`
      [texts, vocabulary] of float32.
    - a list of these: `Embeddings` with all of them from one forward pass, token counts, and the scales of int8.

    `data_type`: "float32", "float16", "bfloat16" (half the bytes on the way; comes as float32), "int8" (a value is its
    number x its row's scale, see `Embeddings`; cosines need no scales) or "binary" (uint8, eight dimensions a byte, the
    first in the highest bit).

    `input_type`: "query" or "document", for models that tell them apart. `prompt` is put before each text, or the
    prompt of the model's files that is called `prompt_name`; an empty `prompt` means none. `dimensions`: leading ones
    to keep.
    `normalize`: whether rows have unit length, by default as the model's files say. `truncate`: cut texts that are over
    the limit, at the side `truncation_side` ("left" or "right", by default the model's), or refuse them (False); by
    default they are refused unless the frontend has `--auto-truncate`.
    `max_tokens`: a lower limit. `sparse_top_k`: keep so many weights of each text. `return_token_ids`: with
    multi-vectors, in `Embeddings`. `pool_factor`: keep about 1 / pool_factor of a document's rows, means of clusters;
    `protected_tokens` at its start stay as they are.

    `progress`: show it, with tqdm where that is installed. `timeout`: seconds for all of it, by default the client's.

    One bad text refuses all; the error's `field` names it by its place in `texts`. Raises InvalidInput and its kinds,
    UnknownModel, Overloaded, Unavailable, DeadlineExceeded, InputTooLarge, Internal; see `selvage.errors`.
    """
    alone = isinstance(output, str)
    outputs = [output] if isinstance(output, str) else list(output)
    if sparse_format not in ("dict", "csr"):
        raise InvalidInput(f"sparse_format is {sparse_format!r}; there are dict, csr", field="sparse_format")
    inputs = Inputs.of(texts)
    template = Template(
        model=model or self.settings.model,
        outputs=outputs,
        input_type=input_type,
        prompt=prompt,
        prompt_name=prompt_name,
        dimensions=dimensions,
        normalize=normalize,
        data_type=data_type,
        truncate=truncate,
        truncation_side=truncation_side,
        max_tokens=max_tokens,
        sparse_top_k=sparse_top_k,
        return_token_ids=return_token_ids,
        pool_factor=pool_factor,
        protected_tokens=protected_tokens,
    )
    csr = sparse_format == "csr" and "sparse" in outputs
    embedding = Embed(template, inputs, csr=csr, seconds=timeout, progress=progress)
    return One(embedding, outputs[0], single=inputs.single) if alone else embedding


def embed_stream(
    self: HasSettings,
    texts: Iterable[str] | Iterable[Sequence[int]] | AsyncIterable[str] | AsyncIterable[Sequence[int]],
    *,
    output: str = "dense",
    model: str = "",
    input_type: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = None,
    data_type: str = "float32",
    truncate: bool | None = None,
    truncation_side: str | None = None,
    max_tokens: int | None = None,
    sparse_top_k: int | None = None,
    pool_factor: float | None = None,
    protected_tokens: int | None = None,
    batch_size: int = 64,
) -> Streaming:
    """The vector of each text, in order, of as many texts as there are, without end if you like.

    `texts`: strings, or lists of token ids; they are read while vectors are taken, 32 batches ahead at most. An
    AsyncClient takes asynchronous iterators too. `output` says what comes of each text: "dense" an ndarray
    [dimensions], "multi_vector" an ndarray [rows, dimensions], "sparse" a dict {token id: weight}. `batch_size`: texts
    that are sent together. Where texts come slowly choose fewer: a batch waits until it is full, and vectors that have
    come are handed on when the next text has been read. The other options are those of `embed`.

    It has no deadline. Where a stream ends after its time, or because a frontend or a connection goes, what has no
    reply is sent again through another one. Raises as `embed` does, as soon as the error comes.
    """
    if batch_size < 1:
        raise InvalidInput(f"batch_size is {batch_size}, must be at least 1", field="batch_size")
    template = Template(
        model=model or self.settings.model,
        outputs=[output],
        input_type=input_type,
        prompt=prompt,
        prompt_name=prompt_name,
        dimensions=dimensions,
        normalize=normalize,
        data_type=data_type,
        truncate=truncate,
        truncation_side=truncation_side,
        max_tokens=max_tokens,
        sparse_top_k=sparse_top_k,
        return_token_ids=False,
        pool_factor=pool_factor,
        protected_tokens=protected_tokens,
    )
    return Streaming(texts, template, output, RetryPolicy(self.settings.retries), most=batch_size)
