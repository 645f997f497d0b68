"""What the command is to do. Knows no flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selvage.bulk.manifest import NAME as MANIFEST
from selvage.bulk.rows import Columns
from selvage.calls.streamed_call import BATCH_LETTERS
from selvage.connection import Settings
from selvage.messages.embedding import Template

MOST = {"dense": 4096, "sparse": 4096, "multi_vector": 512}
"""Rows of a window: thousands, for lengths to be alike in a batch; fewer where each brings a vector a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """`vectors`: what the service is asked for, as `Client.embed` takes it. `services`: one a target; `engine`: a model
    that runs in this process instead, with `engine_options`."""

    inputs: Sequence[str]
    input_format: str
    columns: Columns
    keep_empty: bool
    skip_errors: bool
    output: Path
    format: str
    rows_per_shard: int
    index: int
    count: int
    restart: bool
    vectors: dict[str, Any]
    services: Sequence[Settings]
    engine: str
    engine_options: Any
    batch_size: int
    in_flight: int
    patience: float
    letters: int = BATCH_LETTERS

    @property
    def template(self) -> Template:
        return Template(**self.vectors)

    @property
    def names(self) -> list[str]:
        """Of the output's columns beside the vectors."""
        return [*(["id"] if self.columns.id else []), *self.columns.kept]

    @property
    def window_rows(self) -> int:
        return min(MOST[each] for each in self.vectors["outputs"])

    @property
    def manifest(self) -> Path:
        """Each of the commands that share an output has its own."""
        name = MANIFEST if self.count == 1 else f"{MANIFEST}-{self.index}-of-{self.count}"
        return self.output / f"{name}.json"

    @property
    def told(self) -> dict[str, Any]:
        """By flag, all that the output depends on."""
        own = {
            "input-format": self.input_format,
            "text-column": self.columns.text,
            "id-column": self.columns.id,
            "keep": list(self.columns.kept),
            "keep-empty": self.keep_empty,
            "format": self.format,
            "rows-per-shard": self.rows_per_shard,
            "shard": f"{self.index}/{self.count}",
        }
        return {f"--{name.replace('_', '-')}": value for name, value in {**own, **self.vectors}.items()}
