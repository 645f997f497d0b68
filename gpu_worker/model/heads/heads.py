"""The heads of one model."""

from dataclasses import dataclass

from torch import nn

from gpu_worker.model.heads.classifier import SequenceClassifier, TokenClassifier
from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.multi_vector import MultiVectorHead
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """What a model can give."""

    dense: DenseHead | None = None
    multi_vector: MultiVectorHead | None = None
    sparse: SpladeHead | LexicalHead | None = None
    classifier: SequenceClassifier | None = None
    token_classifier: TokenClassifier | None = None

    def modules(self) -> list[nn.Module]:
        """Those that there are."""
        found = (self.dense, self.multi_vector, self.sparse, self.classifier, self.token_classifier)
        return [each for each in found if isinstance(each, nn.Module)]
