"""BGE-M3 written out from its paper (arXiv:2402.03216), one text at a time, and its repository on disk."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shared.jobs import HybridWeights
from shared.vectors import ScoringMethod
from support.tiny import reader, write_encoder, write_json

SPECIAL = {"cls": 2, "eos": 3, "pad": 0, "unk": 1}
WEIGHTS = HybridWeights(dense=0.4, sparse=0.2, multi_vector=0.4)
Known = dict[str, Any]


class Paper:
    """One text at a time, by a plain XLM-RoBERTa and two matrices."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        generator = torch.Generator().manual_seed(5)
        shapes = {"colbert": (48, 64), "sparse": (1, 64)}
        self.linear = {
            name: {
                "weight": 0.2 * torch.randn(shape, generator=generator),
                "bias": torch.full(shape[:1], 3.0 if name == "sparse" else 0.1),
            }
            for name, shape in shapes.items()
        }

    @torch.inference_mode()
    def of(self, ids: list[int]) -> Known:
        hidden = self.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
        tokens = F.linear(hidden[1:], **self.linear["colbert"])
        weights: dict[int, float] = defaultdict(float)
        for identity, weight in zip(ids, F.linear(hidden, **self.linear["sparse"]).relu().flatten(), strict=True):
            if identity not in SPECIAL.values():
                weights[identity] = max(weights[identity], float(weight))
        return {"dense": F.normalize(hidden[0], dim=0), "tokens": F.normalize(tokens, dim=1), "sparse": dict(weights)}

    def score(self, query: Known, document: Known) -> dict[ScoringMethod, float]:
        products: Tensor = query["tokens"] @ document["tokens"].T
        late = float(products.amax(dim=1).sum() / len(products))
        common = query["sparse"].keys() & document["sparse"].keys()
        lexical = sum(query["sparse"][each] * document["sparse"][each] for each in common)
        dense = float(query["dense"] @ document["dense"])
        parts = WEIGHTS.dense * dense + WEIGHTS.sparse * lexical + WEIGHTS.multi_vector * late
        return {
            ScoringMethod.DENSE: dense,
            ScoringMethod.SPARSE: lexical,
            ScoringMethod.LATE_INTERACTION: late,
            ScoringMethod.HYBRID: parts / (WEIGHTS.dense + WEIGHTS.sparse + WEIGHTS.multi_vector),
        }


def write(folder: Path) -> Paper:
    """Writes a tiny BGE-M3 as it is on disk; returns its reference."""
    paper = Paper(write_encoder(folder, "tiny-xlm-roberta"))
    reader(eos_token="[SEP]").save_pretrained(folder)
    for name, tensors in paper.linear.items():
        torch.save(tensors, folder / f"{name}_linear.pt")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"name": kind, "type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()
    ]
    write_json(
        folder, modules=modules, **{"1_Pooling__config": {"pooling_mode_cls_token": True, "embedding_dimension": 64}}
    )
    return paper
