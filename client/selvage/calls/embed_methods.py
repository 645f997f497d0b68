"""The methods `embed` and `embed_stream` of both clients: a function each, with its signature and docstring. No I/O."""

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, Literal, Protocol, Unpack, overload

from selvage.calls.split_call import RetryPolicy
from selvage.calls.streamed_call import StreamedCall
from selvage.connection import Settings
from selvage.errors import InvalidInput
from selvage.messages.embedding import Embed, Template
from selvage.messages.inputs import Inputs, Operation, Texts, checked_spans
from selvage.messages.options import EmbedOptions, VectorOptions, with_defaults
from selvage.results import Array, Embeddings


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
    letters. For a single string, or the ids of a single text, the result has no axis of texts, unless `output` is a
    list. `model`: the model's name, by default the client's, else the only one.

    `output` chooses what is returned:

    - "dense": ndarray [texts, dimensions] of `data_type`.
    - "multi_vector": a list with an ndarray [rows, dimensions] for each text.
    - "sparse": a list with a dict {token id: weight} for each text; with `sparse_format="csr"`, which needs scipy (else
      ImportError), a `scipy.sparse.csr_array` [texts, vocabulary] of float32.
    - a list of these names: `Embeddings` with all of them from one forward pass, token counts, and the scales of int8.

    Options of the texts:

    - `input_type`: "query" or "document", for models that treat them differently.
    - `prompt`: put before each text; an empty one means no prompt. `prompt_name`: uses a prompt of the model's files.
    - `truncate`: True cuts texts that are over the limit, at the side `truncation_side` ("left" or "right", by default
      the model's); False refuses them. By default they are refused, unless the frontend runs with `--auto-truncate`.
    - `max_tokens`: a lower limit than the model's.

    Options of the results:

    - `dimensions`: keep the leading ones. `normalize`: scale rows to unit length, by default as the model's files say.
    - `data_type`: "float32"; "float16"; "bfloat16" (half the bytes to transfer, returned as float32); "int8" (a value
      is its number x the scale of its row, see `Embeddings`; cosines need no scales); or "binary" (uint8, eight
      dimensions a byte, the first in the highest bit).
    - `sparse_top_k`: keep this many weights of each text.
    - `pool_factor`: keep about 1 / pool_factor of a document's rows, which are means of clusters; `protected_tokens` at
      its start stay as they are.
    - `return_token_ids`: return the token ids of multi-vectors, in `Embeddings`.

    Parts of longer texts, with dense vectors alone, of a model whose card has `pools_spans`:

    - `late_chunking`: the texts are consecutive chunks of one document, in one request: the model reads it as a whole,
      all chunks joined with nothing in between, and each chunk's vector is pooled from its own tokens.
    - `spans`: for each text, pairs of where a part of it starts and ends, in characters. The result is a list with an
      array [spans, dimensions] for each text; for a single string it is this array. In `Embeddings` all rows of `dense`
      lie end to end.
    - `window_overlap`: a document over the model's limit is read in windows that share so many tokens, else refused.

    `progress`: show how far the call is, with tqdm where that is installed. `timeout`: seconds for the whole call, by
    default the client's.

    One bad text refuses the whole call.

    Raises InvalidInput or a subclass of it for an argument, which its `field` names (a text by its place in `texts`),
    and the other errors of `selvage.errors`.
    """
    outputs = [output] if isinstance(output, str) else list(output)
    chosen = with_defaults(EmbedOptions, options, self.settings.model)
    sparse_format, seconds, progress = (chosen.pop(name) for name in ("sparse_format", "timeout", "progress"))
    if sparse_format not in ("dict", "csr"):
        raise InvalidInput(f"sparse_format is {sparse_format!r}; there are dict, csr", field="sparse_format")
    inputs = Inputs.of(texts)
    template = Template(outputs=outputs, **chosen)
    csr = sparse_format == "csr" and "sparse" in outputs
    bounds = checked_spans(spans, inputs)
    alone = output if isinstance(output, str) else ""
    return Embed(template, inputs, alone=alone, csr=csr, seconds=seconds, progress=progress, spans=bounds)


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
    "multi_vector" an ndarray [rows, dimensions], "sparse" a dict {token id: weight}. `model`: the model's name, by
    default the client's, else the only one.

    `batch_size`: how many texts are sent together; fewer where they have more than 32,768 letters. Choose a smaller one
    where texts come slowly: a batch waits until it is full, and results that have come are yielded when the next text
    has been read. The other options mean what they mean in `embed`; the scales of int8 are not returned.

    There is no deadline. Where a stream ends, because its time is over or because a frontend or a connection fails,
    texts without a result are sent again through another stream. A generator that is closed before its end cancels
    what was sent.

    Raises InvalidInput or a subclass of it for an option or a text, which its `field` names, and the other errors of
    `selvage.errors`, as soon as one comes.
    """
    if batch_size < 1:
        raise InvalidInput(f"batch_size is {batch_size}, must be at least 1", field="batch_size")
    chosen = with_defaults(VectorOptions, options, self.settings.model)
    template = Template(outputs=[output], **chosen)
    return StreamedCall(texts, template, output, RetryPolicy(self.settings.retries), batch_texts=batch_size)
