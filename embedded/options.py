"""Options of an engine: the worker's settings except those for serving on a port. No environment is read."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from gpu_worker.settings import WorkerSettings


class EngineOptions(TypedDict, total=False):
    """Types of the options, for type checkers; `python -m gpu_worker --help` explains them."""

    revision: str
    served_name: str | Sequence[str]
    adapter: str | Sequence[str]
    device: str
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"]
    max_tokens: int
    chunk_tokens: int | None
    cache_megabytes: int
    trust_remote_code: bool
    step_milliseconds: float | None
    threads: int
    late_interaction: str
    score_template: str


class _ArgumentSettings(WorkerSettings):
    """The worker's settings from arguments alone; environment variables are for a worker process."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def settings_of(model: str, options: EngineOptions) -> WorkerSettings:
    """The worker's settings for an engine, in which the queue has no time limit.

    Raises TypeError for an unknown option, ValueError for a value that makes no sense.
    """
    names = EngineOptions.__annotations__
    for name in options:
        if name not in names:
            raise TypeError(f"Engine has no option {name!r}; there are {', '.join(names)}")
    try:
        return _ArgumentSettings(model=model, queue_seconds=0, **options)  # type: ignore[call-arg, arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a rule about several settings
            raise ValueError(first["msg"].removeprefix("Value error, ")) from None
        raise ValueError(f"{first['loc'][0]} = {first['input']!r}: {first['msg']}") from None
