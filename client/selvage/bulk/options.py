"""What the bulk command is to do. Knows no flags."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selvage.bulk.manifest import NAME as MANIFEST
from selvage.bulk.rows import Columns
from selvage.calls.streamed_call import BATCH_LETTERS
from selvage.connection import Settings
from selvage.messages.embedding import Template

BLOCK_ROWS = {"dense": 4096, "sparse": 4096, "multi_vector": 512}
"""Rows of a block by output: thousands, so that batches have texts of like length; fewer where tokens have vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """All options of the command.

    `vectors`: the options of the vectors, as `Template` takes them. `services`: the settings of each target. `engine`:
    the model that this process runs instead, with `engine_options`. `letters`: most letters of a batch.
    """

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
    def extra_names(self) -> list[str]:
        """Names of the extra columns in the output: `id`, where there is one, and the copied columns."""
        return [*(["id"] if self.columns.id else []), *self.columns.copied]

    @property
    def block_rows(self) -> int:
        return min(BLOCK_ROWS[output] for output in self.vectors["outputs"])

    @property
    def manifest_path(self) -> Path:
        """The command's manifest; commands that share an output folder have one each."""
        name = MANIFEST if self.count == 1 else f"{MANIFEST}-{self.index}-of-{self.count}"
        return self.output / f"{name}.json"

    @property
    def settings_by_flag(self) -> dict[str, Any]:
        """Everything that the output depends on, by the name of its flag."""
        settings = {
            "input-format": self.input_format,
            "text-column": self.columns.text,
            "id-column": self.columns.id,
            "keep": list(self.columns.copied),
            "keep-empty": self.keep_empty,
            "format": self.format,
            "rows-per-shard": self.rows_per_shard,
            "shard": f"{self.index}/{self.count}",
        }
        return {f"--{name.replace('_', '-')}": value for name, value in {**settings, **self.vectors}.items()}
