"""A loaded model, ready to serve, and what it can do, with the errors for what it cannot."""

from dataclasses import dataclass, field

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.maxsim.maxsim_kernels import MaxSimKernel
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import Heads, SpladeHead
from gpu_worker.model.heads.pooling import OF_ANY_TOKENS
from gpu_worker.model.native.native_model import NativeModel
from gpu_worker.repository.recipe import Recipe
from gpu_worker.repository.static_format import Queries
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.card import LateInteraction, Listwise
from shared.errors import InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Classify, Encode, Score, Work
from shared.query_table import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TOKENIZER_FILE
from shared.vectors import InputType, Layout, OutputKind, ScoringMethod, Task

STATIC = "static"
"""The family of static embeddings."""
NOT_TRIED = "it was not tried"
SPLADE_ROW_IDS = 4096
"""Vocabulary ids of one sparse row that cost about as much as a token: they are downloaded and searched on the host."""
NOT_OF_SEQUENCES = (ScoringMethod.CROSS_ENCODER, ScoringMethod.LISTWISE)
"""Methods that compare no sequences of a job: pairs are classified, and the rows of blocks compared by the frontend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model: what runs (`encoder`, `heads`), what its files say (`recipe`), and how it is known.

    `names` are those that clients may call it by; replies give the first. `max_tokens` is the longest text;
    `late_interaction` has limits of its own for its sides; `listwise` says how a listwise reranker reads texts.
    `instruction_marks` are token sequences; pooling leaves out a text's tokens up to the first of them.
    `notice` is what a user should know, `findings` what was found out while loading, in lines for the log. `linear`
    names how linear layers run, for the card.
    `whole_texts` is why no text is computed in pieces, empty where long ones may be; the device then keeps
    `token_bytes` of each token and `state_bytes` of each text meanwhile. `unshared` is why texts share no first tokens;
    empty where they may. `other_bits` is why a text may have other bits among others than alone; empty where it has the
    same.
    `adapters` are the models of the adapters over this one, which share its encoder and heads; `adapter` is the number
    of such a model, 0 for the base. `task_models`: the names of the models of tasks, by task, where a repository has an
    adapter for each task; that of a task has its own entry alone.
    `queries`: how those of inference-free SPLADE are looked up; the rest is of documents.
    """

    names: tuple[str, ...]
    encoder: Encoder
    heads: Heads
    recipe: Recipe
    tokenizer: TokenizerFile
    instruction_marks: list[tuple[int, ...]]
    vocabulary_size: int
    max_tokens: int
    late_interaction: LateInteraction | None
    placement: Placement
    linear: str
    fingerprint: str
    notice: str
    findings: tuple[str, ...]
    flops_per_token: float
    weight_bytes: int
    maxsim: MaxSimKernel
    whole_texts: str = NOT_TRIED
    token_bytes: int = 0
    state_bytes: int = 0
    unshared: str = NOT_TRIED
    other_bits: str = NOT_TRIED
    listwise: Listwise | None = None
    adapter: int = 0
    adapters: "tuple[Model, ...]" = ()
    queries: Queries | None = None
    task_models: dict[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The model type, as transformers names it; for the card."""
        return STATIC if self.recipe.static else str(self.encoder.model.config.get_text_config().model_type)

    @property
    def sharing(self) -> str:
        """Tells people in one line how texts that begin alike are computed."""
        return f"each by itself: {self.unshared}" if self.unshared else "in one step, their first tokens once"

    @property
    def bits(self) -> str:
        """Tells people in one line whether a text has the same bits alone and in any batch."""
        return f"may differ in another batch: {self.other_bits}" if self.other_bits else "the same in any batch"

    @property
    def tokenizer_files(self) -> dict[str, bytes]:
        """What frontends need to read texts, by file names."""
        files = {TOKENIZER_FILE: self.tokenizer.content}
        if self.queries is not None:
            if self.queries.tokenizer.content != self.tokenizer.content:
                files[QUERY_TOKENIZER_FILE] = self.queries.tokenizer.content
            if self.queries.sent:
                files[QUERY_TABLE_FILE] = self.queries.sent
        return files

    @property
    def native_layers(self) -> str:
        """The forms of the layers that run whole by the processor's kernels; empty where none does."""
        native = self.encoder.model
        return native.forms if isinstance(native, NativeModel) else ""

    @property
    def longest(self) -> int:
        """Most tokens of a sequence, over texts and the sides of late interaction."""
        late = self.late_interaction
        return max(self.max_tokens, *((late.query_length, late.document_length) if late else (0,)))


class Abilities:
    """Outputs, scoring methods and tasks of one model.

    `rows` are the kinds of rows that jobs may ask for; `outputs` those of them that are vectors of texts, which a
    listwise reranker's are not. `widths` are their dimensions by kind, 0 where it has none. `own_multi_vectors` says
    whether it was made for late interaction, which it then prefers to scoring by dense vectors. `pools_spans`: whether
    a part of a text can have a dense vector. `labels` are those of its classifier.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        heads = model.heads
        self.rows = tuple(
            kind
            for kind, head in (
                (OutputKind.DENSE, heads.dense),
                (OutputKind.SPARSE, heads.sparse),
                (OutputKind.MULTI_VECTOR, heads.multi_vector),
            )
            if head is not None
        )
        self._kinds = frozenset(self.rows)
        self.outputs = () if model.listwise else self.rows
        self.widths = {
            OutputKind.DENSE: heads.dense.width if heads.dense else 0,
            OutputKind.MULTI_VECTOR: heads.multi_vector.width if heads.multi_vector else 0,
        }
        recipe = model.recipe
        self.own_multi_vectors = bool(recipe.multi_vector and (recipe.multi_vector.layers or recipe.dense is None))
        self.labels = recipe.classifier.labels if recipe.classifier else ()
        of_any_tokens = heads.dense is not None and OF_ANY_TOKENS.issuperset(heads.dense.poolings)
        self.pools_spans = of_any_tokens and recipe.message is None
        self.methods = self._methods()
        self.default_method = self._default_method()
        self.tasks = self._tasks()

    def _methods(self) -> tuple[ScoringMethod, ...]:
        """Lists the scoring methods of the model. One whose documents are images scores no texts."""
        if self._model.recipe.message and self._model.recipe.message.queries_only:
            return ()
        by_output = {
            OutputKind.DENSE: ScoringMethod.DENSE,
            OutputKind.SPARSE: ScoringMethod.SPARSE,
            OutputKind.MULTI_VECTOR: ScoringMethod.LATE_INTERACTION,
        }
        cross = (ScoringMethod.CROSS_ENCODER,) if self._model.heads.classifier and len(self.labels) == 1 else ()
        hybrid = (ScoringMethod.HYBRID,) if len(self.outputs) == len(by_output) else ()
        listwise = (ScoringMethod.LISTWISE,) if self._model.listwise else ()
        return (*listwise, *cross, *(by_output[kind] for kind in self.outputs), *hybrid)

    def _default_method(self) -> ScoringMethod | None:
        """The method of requests that name none; None where the model cannot score."""
        late = (ScoringMethod.LATE_INTERACTION,) if self.own_multi_vectors else ()
        joint = (ScoringMethod.LISTWISE, ScoringMethod.CROSS_ENCODER)
        order = (*joint, *late, ScoringMethod.DENSE, ScoringMethod.SPARSE)
        return next((method for method in order if method in self.methods), None)

    def _tasks(self) -> tuple[Task, ...]:
        """Tasks of the model."""
        heads = self._model.heads
        abilities = {
            Task.EMBED: self.outputs,
            Task.RERANK: self.methods,
            Task.CLASSIFY: heads.classifier,
            Task.CLASSIFY_TOKENS: heads.token_classifier,
        }
        return tuple(task for task, able in abilities.items() if able)

    def sparse_cost(self, tokens: int) -> int:
        """Estimates the cost of the sparse vectors of a sequence with so many tokens, in tokens of the encoder."""
        head = self._model.heads.sparse
        if not isinstance(head, SpladeHead):
            return 0
        width = self._model.encoder.width
        logits = tokens * 2 * head.vocabulary * width / self._model.flops_per_token
        return int(logits) + head.vocabulary // SPLADE_ROW_IDS

    def check_encode(self, work: Encode) -> None:
        """Raises UnsupportedTask, UnsupportedDimensions or InvalidInput where the model cannot do this work."""
        if not work.outputs or not work.outputs <= self._kinds:
            names = ", ".join(output.name for output in self.rows) or "none"
            raise UnsupportedTask(f"of outputs this model has {names}", field="outputs")
        if work.sparse_top_k < 0:
            raise InvalidInput("sparse_top_k is negative", field="sparse_top_k")
        if work.pooling is not None:
            if OutputKind.MULTI_VECTOR not in work.outputs or work.input_type is InputType.QUERY:
                raise InvalidInput("pooling needs MULTI_VECTOR of documents", field="pool_factor")
            if work.token_ids:
                raise InvalidInput("pooled rows have no token ids", field="pool_factor")
        if not work.dimensions:
            return
        for kind in sorted(work.outputs & self.widths.keys()):
            if not 1 <= work.dimensions <= self.widths[kind]:
                raise UnsupportedDimensions(
                    f"dimensions must be 1 to {self.widths[kind]} for {kind.name}", field="dimensions"
                )

    def check_ranges(self, work: Work) -> None:
        """Raises UnsupportedTask or InvalidInput where token ranges have no meaning in this work or for this model."""
        if not isinstance(work, Encode) or work.outputs != {OutputKind.DENSE}:
            raise InvalidInput("token ranges need an Encode of DENSE alone", field="range_counts")
        if not self.pools_spans:
            raise UnsupportedTask("this model pools no token ranges", field="range_counts")

    def check_max_sim(self) -> int:
        """Returns the dimensions of token vectors. Raises UnsupportedTask where the model has none."""
        if OutputKind.MULTI_VECTOR not in self.outputs:
            raise UnsupportedTask("this model has no token vectors to compare given ones with", field="query_texts")
        return self.widths[OutputKind.MULTI_VECTOR]

    def check_classify(self, work: Classify) -> int:
        """Returns the number of labels. Raises UnsupportedTask or InvalidInput where the model cannot do this work."""
        heads = self._model.heads
        if (heads.token_classifier if work.tokens else heads.classifier) is None:
            raise UnsupportedTask(f"this model classifies no {'tokens' if work.tokens else 'texts'}", field="model")
        if work.token_id is not None and not work.tokens:
            raise InvalidInput("token_id needs tokens", field="token_id")
        return len(self.labels)

    def check_score(self, work: Score, sequences: int) -> None:
        """Raises UnsupportedTask or InvalidInput where the model cannot do this work on so many sequences."""
        documents = sequences - work.queries
        if work.method not in self.methods or work.method in NOT_OF_SEQUENCES:
            names = ", ".join(method.name for method in self.methods) or "none"
            raise UnsupportedTask(f"of methods this model has {names}", field="method")
        if work.explain and (work.method is not ScoringMethod.LATE_INTERACTION or work.queries != 1):
            raise InvalidInput("explain needs the method LATE_INTERACTION and one query", field="explain")
        if work.pooling is not None and (work.method is not ScoringMethod.LATE_INTERACTION or work.explain):
            raise InvalidInput("pooling needs the method LATE_INTERACTION without explain", field="pool_factor")
        if work.queries < 1 or documents < 1:
            raise InvalidInput("a score needs a query and a document", field="queries")
        if work.layout is Layout.PAIRS and work.queries != documents:
            raise InvalidInput("pairs need as many queries as documents", field="documents")
