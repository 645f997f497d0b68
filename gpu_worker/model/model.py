"""A loaded model, ready to serve."""

from dataclasses import dataclass

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.maxsim.maxsim_kernels import MaxSimKernel
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.native.native_model import NativeModel
from gpu_worker.repository.recipe import Recipe
from gpu_worker.repository.static_format import Queries
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.card import LateInteraction, Listwise
from shared.query_table import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TOKENIZER_FILE

STATIC = "static"
"""The family of static embeddings."""
NOT_TRIED = "it was not tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A loaded model: what runs (`encoder`, `heads`), what its files say (`recipe`), and how it is known.

    `names` are those that clients may call it by; replies give the first. `max_tokens` is the longest text;
    `late_interaction` has limits of its own for its sides; `listwise` says how a listwise reranker reads texts.
    `instruction_marks` are token sequences; pooling leaves out a text's tokens up to the first of them.
    `notice` is what a user should know, `findings` what was found out while loading, in lines for the log. `linear`
    names how linear layers run, for the card.
    `whole_texts` is why no text is
    computed in pieces, empty where long ones may be; `token_bytes` is what the device then keeps of each token
    meanwhile. `unshared` is why texts share no first tokens; empty where they may. `other_bits` is why a text may have
    other bits among others than alone; empty where it has the same.
    `adapters` are the models of the adapters over this one, which share its encoder and heads; `adapter` is the number
    of such a model, 0 for the base.
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
    unshared: str = NOT_TRIED
    other_bits: str = NOT_TRIED
    listwise: Listwise | None = None
    adapter: int = 0
    adapters: "tuple[Model, ...]" = ()
    queries: Queries | None = None

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
