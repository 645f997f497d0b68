"""The heads of one model."""

from dataclasses import dataclass

from torch import nn

from gpu_worker.model.heads.classifier import SequenceClassifier, TokenClassifier
from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.multi_vector import MultiVectorHead
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads that a model has; None stands for those that it lacks."""

    dense: DenseHead | None = None
    multi_vector: MultiVectorHead | None = None
    sparse: SpladeHead | LexicalHead | None = None
    classifier: SequenceClassifier | None = None
    token_classifier: TokenClassifier | None = None

    def modules(self) -> list[nn.Module]:
        """All heads that the model has."""
        heads = (self.dense, self.multi_vector, self.sparse, self.classifier, self.token_classifier)
        return [head for head in heads if isinstance(head, nn.Module)]
