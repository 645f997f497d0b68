"""The fingerprints that a frontend is bound to: which models of workers it may serve. Knows no gRPC."""

from collections.abc import Collection
from dataclasses import dataclass

from shared.card import ModelCard
from shared.errors import WorkerUnavailable


@dataclass(frozen=True, slots=True)
class Pins:
    """The fingerprints of models that may be served; none: any model may be.

    Workers of one name may have other weights. Without pins each frontend chooses by itself which of them the name
    stands for, so two frontends may choose differently.
    """

    fingerprints: Collection[str] = ()

    def check(self, card: ModelCard) -> None:
        """Raises WorkerUnavailable for the card of a model that may not be served."""
        if self.fingerprints and card.fingerprint not in self.fingerprints:
            pinned = ", ".join(sorted(self.fingerprints))
            raise WorkerUnavailable(f"its {card.id} has the fingerprint {card.fingerprint}, --fingerprint is {pinned}")


ANY_MODEL = Pins()
