"""A model as its repository's files describe it, in plain data: the encoder, the heads, how texts are prepared."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shared.card import Listwise
from shared.vectors import Activation, InputType, QueryExpansion, TokenPooling

Strategy = Literal[QueryExpansion.FIXED, QueryExpansion.MIN]
Entries = dict[str, tuple[Any, str]]
"""Settings as files give them: values by key, each with the file and key that give it, for refusals."""
WeightsOf = Literal["encoder", "masked-lm", "causal-lm", "sequence-classification", "token-classification"]
"""The transformers class that holds the weights; see `weights.py`."""
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Pooling modes, in the order in which sentence-transformers concatenates them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecipe:
    """One layer of a head, over rows.

    `kind` is dense: activation(x W^T + b), plus x or x R^T if `residual`; unit: rows scaled to unit length; layer-norm;
    or cut: the first `outputs` numbers of a row.
    `weights` is the path of the file with its tensors inside the repository, without suffix, and `keys` are their
    names there by role (weight, bias, residual); `inputs` and `outputs` are widths, 0 where only that
    file gives them.
    """

    kind: Literal["dense", "layer-norm", "unit", "cut"]
    inputs: int = 0
    outputs: int = 0
    activation: str = "torch.nn.modules.linear.Identity"
    residual: bool = False
    weights: str = ""
    keys: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRecipe:
    """One vector a text: pooled rows, concatenated over `poolings`, through `layers`; unit length if `normalize`."""

    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    layers: tuple[LayerRecipe, ...] = ()
    normalize: bool = False
    allowed_dimensions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiVectorRecipe:
    """One vector a token through `layers`; unit length if `normalize`. `skip_first`: the first token has none (BGE-M3).

    `mean`: a score is the mean over query rows unless a request says otherwise; else the sum. `pooling`: how rows of
    documents become fewer unless a request says otherwise; None: they do not.
    """

    layers: tuple[LayerRecipe, ...] = ()
    skip_first: bool = False
    mean: bool = False
    normalize: bool = True
    pooling: TokenPooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Query expansion: queries are filled up to `length` tokens (ColBERT, arXiv:2004.12832).

    `token` None: the mask token, else the end token. `attend`: other tokens attend to expansion tokens. `source` names
    the file and key for refusals: a token or length may prove wrong only when the model is loaded.
    """

    strategy: Strategy
    length: int
    attend: bool = False
    token: str | None = None
    source: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateInteractionRecipe:
    """Late-interaction settings as the files give them, before the tokenizer and the number of positions are known.

    A length of None is the model's own limit. `skiplist` are tokens as the vocabulary writes them. `markers` are texts
    by the prompt that they begin; they stand for tokens that training inserted, so the tokenizer must not split them.
    `padding_side` overrides the tokenizer's; expansion tokens go to that side. `entries` are the keys that it was made
    from, and `overridden` those of them that the file of --late-interaction gives.
    """

    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skiplist: tuple[str, ...] = ()
    skip_in_queries: bool = False
    skip_in_documents: bool = True
    markers: dict[str, str] = field(default_factory=dict)
    padding_side: str | None = None
    entries: Entries = field(default_factory=dict, compare=False)
    overridden: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRecipe:
    """A sparse head: weighted vocabulary ids.

    splade: log(1 + relu(logit)) of the masked-LM head, maximum or sum over tokens (arXiv:2109.10086); `logs` 2 takes
    the logarithm twice. lexical: relu of one linear layer a token, maximum a token id (BGE-M3, arXiv:2402.03216).
    """

    kind: Literal["splade", "lexical"]
    strategy: Literal["max", "sum"] = "max"
    logs: int = 1
    layer: LayerRecipe | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriesRecipe:
    """Queries of inference-free SPLADE: `folder` has a table with a weight for each token id, and its tokenizer.

    `default` says what texts are that are neither queries nor documents: QUERY, DOCUMENT, or UNSPECIFIED where every
    request must say it.
    """

    folder: str
    max_tokens: int
    default: InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTemplate:
    """How a reranker is asked, as score_template.json or --score-template says it.

    `template` is Jinja, `instruction` the one of requests without an instruction. `true_token` and `false_token` are
    the answers as texts, None where the model's files say them or there is one answer. `source` names the file for
    refusals.
    """

    template: str
    true_token: str | None
    false_token: str | None
    instruction: str
    logit_mean: float
    logit_sigma: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierRecipe:
    """A classifier: labels of texts or tokens, or the scores of a reranker.

    `kind` is sequence: the head of the transformers class, or `pooled` rows; tokens: its head, or `layers`, on every
    token; or yes-no: the logits of the next token after the text. `yes_no` are the vocabulary ids whose difference is
    the one score (the second may be missing), None for the words yes and no. `template` is the prompt for a pair,
    `instructed_template` one with an {instruction}. Both are rendered from a `score_template`, else from the
    tokenizer's chat template, with `structured` contents and `chat_options`; a model that `needs_template` and has none
    is refused, unless Qwen3's is `builtin_template`. A logit of yes-no and `pooled` is
    (what the model gives - `logit_mean`) / `logit_sigma`.
    """

    kind: Literal["sequence", "tokens", "yes-no"]
    activation: Activation
    labels: tuple[str, ...] = ()
    pooled: DenseRecipe | None = None
    layers: tuple[LayerRecipe, ...] = ()
    yes_no: tuple[int, int | None] | None = None
    template: str = ""
    builtin_template: bool = False
    needs_template: bool = False
    structured: bool = False
    chat_options: dict[str, Any] = field(default_factory=dict)
    instructed_template: str = ""
    score_template: ScoreTemplate | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecipe:
    """How a model of vectors reads texts as chat messages: a text is the user's, its prompt the system's.

    A model whose documents are images reads queries behind a `query_prefix`, which other models have not (None), and
    has no chat template. That of others gets `structured` contents and `options`. `templates` are what a text becomes,
    by "" for any, and by "query" and "document" where these become something else; `prompted_templates` are those for a
    text with a prompt, none where it has no place for one. Both are empty before the tokenizer is known. `bare`: the
    tokenizer puts no special tokens around a message. `source` names the file for refusals.
    """

    structured: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    query_prefix: str | None = None
    source: str = field(compare=False, repr=False)  # the fingerprint is of the repr
    templates: dict[str, str] = field(default_factory=dict, compare=False)
    prompted_templates: dict[str, str] = field(default_factory=dict, compare=False)
    bare: bool = field(default=True, compare=False)

    @property
    def queries_only(self) -> bool:
        """Whether documents are images, which are not served."""
        return self.query_prefix is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A description of how a model runs and how its texts are prepared.

    `encoder` is the folder of the transformers model inside the repository; `max_tokens` None means as many as the
    model has positions, `truncation_side` None what its tokenizer says; `config` overrides its config.json. `part` is
    the key there of what describes the encoder, empty where all of it does.
    `late_interaction` is None where queries and documents differ in their prompts alone. `instruction_mark` is the text
    that ends the part of a sequence that pooling leaves out (GritLM). `listwise`: how a listwise reranker reads texts,
    before the ids of its markers are known; the dense rows there are compared, and are no vectors of texts.
    `static`: `encoder` is the folder of a table with a row for each token id, in place of a transformers model.
    `queries`: how queries of inference-free SPLADE are read; the rest describes how documents are. `message`: how texts
    become chat messages; None where they are read as they are.
    """

    weights_of: WeightsOf = "encoder"
    encoder: str = ""
    part: str = field(default="", repr=False)  # the fingerprint is of the repr, and config.json tells it
    config: dict[str, Any] = field(default_factory=dict)
    dense: DenseRecipe | None = None
    multi_vector: MultiVectorRecipe | None = None
    late_interaction: LateInteractionRecipe | None = None
    sparse: SparseRecipe | None = None
    classifier: ClassifierRecipe | None = None
    listwise: Listwise | None = None
    max_tokens: int | None = None
    truncation_side: str | None = None
    lowercase: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    instruction_mark: str = ""
    notice: str = ""
    static: bool = False
    queries: QueriesRecipe | None = None
    message: MessageRecipe | None = None

    @property
    def bare(self) -> bool:
        """Whether no special tokens go around what is tokenised: its message has them, if any."""
        return self.message is not None and self.message.bare

    def head_keys(self) -> set[str]:
        """Names of the tensors that heads read from the file of the encoder's own weights."""
        heads = (self.dense, self.multi_vector, self.classifier)
        layers = [layer for head in heads if head for layer in head.layers]
        return {key for layer in layers if layer.weights == "model" for key in layer.keys.values()}
