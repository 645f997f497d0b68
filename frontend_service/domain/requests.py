"""Requests: frozen, and valid as far as no model needs to be known. Knows no API."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shared.errors import InvalidInput
from shared.vectors import DataType, InputType, OutputKind, TruncationSide


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """A choice of the prompt before each text: a literal one, one of the model's by name or by what it is for, or by
    the kind of text.

    `task`: one of Jina's, such as `nl2code.query`.
    """

    literal: str | None = None
    name: str | None = None
    task: str | None = None
    input_type: InputType = InputType.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """A choice of what is done with texts over the limit. `side`: the end that is cut off; None: as the model has it.

    `max_tokens` lowers the model's limit; `field` is its name in errors. Above the model's limit it is an error, unless
    it is a `bound`, which then has no effect. Without `limited` a text may have any length: it is only shown.
    `truncate` None: the request does not say whether to cut; see `Limits.with_default`. `text_bytes`: bytes of UTF-8
    that are read of a text that is cut.
    """

    truncate: bool | None = None
    side: TruncationSide | None = None
    max_tokens: int | None = None
    field: str = "max_tokens"
    bound: bool = False
    limited: bool = True
    text_bytes: int = 0

    def within(self, other: "Truncation | None") -> "Truncation":
        """Both truncations at once: the lower of their limits, and a text is cut where either says so."""
        if other is None:
            return self
        limits = [cut for cut in (self, other) if cut.max_tokens is not None]
        lower = min(limits, key=lambda cut: cut.max_tokens or 0, default=other)
        return replace(
            lower,
            truncate=self.truncate or other.truncate,
            side=self.side or other.side,
            text_bytes=max(self.text_bytes, other.text_bytes),
        )


DEFAULT_PROMPT, DEFAULT_TRUNCATION = PromptChoice(), Truncation()
"""A request that says nothing: the model's own prompt for all texts, if it has one, and the model's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Texts to tokenise, at least one."""

    model: str = ""
    texts: tuple[str, ...]
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Lists of ids to turn back into texts, which are queries or documents where a model reads the two differently."""

    model: str = ""
    tokenized: tuple[tuple[int, ...], ...]
    skip_special_tokens: bool = False
    input_type: InputType = InputType.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPooling:
    """A choice to pool the token rows of each document to 1 / `factor` of them; the first `protected` are kept."""

    factor: float
    protected: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.factor < float("inf"):
            raise InvalidInput(f"pool_factor is {self.factor:g}, must be a number of at least 1", field="pool_factor")
        if self.protected < 0:
            raise InvalidInput(f"protected_tokens is {self.protected}, must be at least 0", field="protected_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPooling:
    """A choice to pool spans of texts, each into a vector of its own.

    `spans`: of each text, its spans from one character to the one before another; None: the texts are the chunks of one
    document (late chunking). `window_overlap`: how many tokens the windows of a document over the limit share; None: it
    is refused.
    """

    spans: tuple[tuple[tuple[int, int], ...], ...] | None = None
    window_overlap: int | None = None

    @property
    def field(self) -> str:
        """The field of a request that asks for this."""
        return "late_chunking" if self.spans is None else "spans"

    def __post_init__(self) -> None:
        if self.window_overlap is not None and self.window_overlap < 0:
            raise InvalidInput(f"window_overlap is {self.window_overlap}, must be at least 0", field="window_overlap")

    def check(self, texts: Sequence[str]) -> None:
        """Raises InvalidInput where spans are not those of the texts."""
        if self.spans is None:
            return
        if len(self.spans) != len(texts):
            counts = f"{len(self.spans)} and {len(texts)}"
            raise InvalidInput(f"spans must be empty or as many as texts: {counts}", field="spans")
        for index, (text, spans) in enumerate(zip(texts, self.spans, strict=True)):
            field, length = f"spans[{index}]", len(text)
            if not spans:
                raise InvalidInput(f"{field} has no spans; leave the text out", field=field)
            for number, (start, end) in enumerate(spans):
                if not 0 <= start < end <= length:
                    why = "has no characters" if start >= end else f"is not within the {length} characters of its text"
                    raise InvalidInput(f"{field}: span {number}, from {start} to {end}, {why}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts or token ids to embed; exactly one of the two is set."""

    model: str = ""
    texts: tuple[str, ...] = ()
    tokenized: tuple[tuple[int, ...], ...] = ()
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    outputs: tuple[OutputKind, ...] = ()
    dimensions: int | None = None
    normalize: bool | None = None
    data_type: DataType = DataType.FLOAT32
    return_token_ids: bool = False
    sparse_top_k: int | None = None
    pooling: TokenPooling | None = None
    span_pooling: SpanPooling | None = None

    @property
    def dense_rows(self) -> int:
        """How many dense vectors the reply has: one a text, or one a span."""
        spans = self.span_pooling.spans if self.span_pooling else None
        return sum(map(len, spans)) if spans else len(self.texts) or len(self.tokenized)

    def __post_init__(self) -> None:
        if self.texts and self.tokenized:
            raise InvalidInput("texts and tokenized are both given; exactly one may be", field="tokenized")
        if not self.texts and not self.tokenized:
            raise InvalidInput("texts is empty, and so is tokenized", field="texts")
        if self.tokenized and (self.prompt.literal is not None or self.prompt.name is not None):
            field = "prompt_name" if self.prompt.literal is None else "prompt"
            raise InvalidInput(f"token ids are fed as they are; {field} needs texts", field=field)
        for index, ids in enumerate(self.tokenized):
            if not ids:
                raise InvalidInput(f"tokenized[{index}] has no ids", field=f"tokenized[{index}]")
        if self.pooling and self.return_token_ids:
            raise InvalidInput("return_token_ids and pool_factor are both given: a mean has no id", field="pool_factor")
        if self.pooling and self.prompt.input_type is InputType.QUERY:
            raise InvalidInput("pool_factor is for documents, input_type is QUERY", field="pool_factor")
        if self.span_pooling:
            self._check_spans(self.span_pooling)

    def _check_spans(self, pooling: SpanPooling) -> None:
        """Raises InvalidInput for spans that are not those of the texts, and for what has no meaning beside them."""
        field = pooling.field
        if self.tokenized:
            raise InvalidInput(f"{field} needs texts: token ids have no characters", field=field)
        if self.cut.truncate:
            raise InvalidInput(
                f"{field} and truncate are both given: a part that is cut off would have no vector; window_overlap "
                "reads a long document in windows",
                field=field,
            )
        if self.prompt.input_type is InputType.QUERY:
            raise InvalidInput(f"{field} is for documents, input_type is QUERY", field=field)
        pooling.check(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """Texts to classify; with `pairs`, each together with its second text."""

    model: str = ""
    texts: tuple[str, ...]
    pairs: tuple[str, ...] = ()
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    normalize: bool | None = None

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")
        if self.pairs and len(self.pairs) != len(self.texts):
            raise InvalidInput(
                f"text_pairs must be empty or as many as texts: {len(self.pairs)} and {len(self.texts)}",
                field="text_pairs",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyTokensRequest:
    """Texts whose tokens to classify; with `token_id` only the tokens of that id."""

    model: str = ""
    texts: tuple[str, ...]
    prompt: PromptChoice = DEFAULT_PROMPT
    cut: Truncation = DEFAULT_TRUNCATION
    token_id: int | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidInput("texts is empty", field="texts")
