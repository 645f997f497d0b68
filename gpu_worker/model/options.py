"""What a user may say of a load, beside the model's name and the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_worker.model.tune.graphs import GraphSettings
from gpu_worker.model.tune.linear import Linear
from gpu_worker.repository.adapters import NamedAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """`names`: what clients call the model, none for its own name and id. `max_tokens` 0 means as the files say.
    `revision` is of a hub id. `late`: the file of --late-interaction. `graphs`: those that an accelerator may run steps
    by, None for none. `linear`: whether layers are rounded. `cuts`: whether long texts are to be computed in pieces.
    `shares`: whether texts that begin alike are to share their first tokens. `adapters`: those that are served over the
    model.
    """

    names: tuple[str, ...] = ()
    max_tokens: int = 0
    trust_remote_code: bool = False
    revision: str = ""
    late: Path | None = None
    graphs: GraphSettings | None = None
    linear: Linear = "auto"
    cuts: bool = True
    shares: bool = True
    adapters: Sequence[NamedAdapter] = ()

    @property
    def rounded(self) -> bool:
        """Whether linear layers are to be rounded."""
        return self.linear != "auto"
