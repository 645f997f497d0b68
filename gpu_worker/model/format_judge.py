"""Judges the number formats that a model is loaded in, by the cosine that a user wants."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.tune.format_speeds import USUAL, floored
from gpu_worker.model.verify.final_rows import FinalRows
from gpu_worker.model.verify.gate import Reference
from shared.errors import ModelRefused


@dataclass(slots=True, kw_only=True)
class FormatJudge:
    """A judge sees every load of a model: that in float32 first, which all others are compared with.

    `least` is the least cosine that a probe's vector may have. `format` names the format that is loaded next. `cosines`
    are those of trials, by format, and then those of what would serve.
    """

    least: float
    format: str = USUAL
    cosines: dict[str, float] = field(default_factory=dict)
    _expected: FinalRows | None = None

    def see(self, reference: Reference, encoder: Encoder, heads: Heads, trials: Mapping[str, float]) -> None:
        """Compares what would serve with the model's own run in float32. Raises ModelRefused where it is too far away.

        `reference` is of this load; `trials` are the cosines of its trials of other formats.
        """
        numbers = reference.whole
        texts = [reference.probes.texts[number] for number in numbers]
        if self.format == USUAL:
            self._expected = FinalRows.of(heads, reference.exact_of(numbers), texts)
            self.cosines = {**trials, **self.cosines}
            return
        assert self._expected is not None, "float32 is loaded first"
        hidden = reference.among_others(encoder, numbers).hidden
        cosine = FinalRows.of(heads, hidden.to(encoder.dtype), texts).least_cosine(self._expected)
        self.cosines[self.format] = cosine
        if not self.keeps(self.format):
            raise ModelRefused(f"cosine {floored(cosine)} to float32, wanted is --least-cosine = {self.least}")

    def keeps(self, name: str) -> bool:
        """Whether a format keeps the cosine, as far as it was measured."""
        return self.cosines.get(name, 1.0) >= self.least
