"""The fingerprints that a frontend is bound to: which models of workers it may serve. Knows no gRPC."""

from collections.abc import Collection, Sequence
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

    def allowed(self, cards: Sequence[ModelCard]) -> list[ModelCard]:
        """The cards of the models that may be served. Raises WorkerUnavailable where there are none."""
        allowed = [card for card in cards if not self.fingerprints or card.fingerprint in self.fingerprints]
        if not allowed:
            card, pinned = cards[0], ", ".join(sorted(self.fingerprints))
            raise WorkerUnavailable(f"its {card.id} has the fingerprint {card.fingerprint}, --fingerprint is {pinned}")
        return allowed


ANY_MODEL = Pins()
