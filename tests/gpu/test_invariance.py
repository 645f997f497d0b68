"""A text alone against among others, in bfloat16: what may differ is rounding, and how much of it is reported.

The products' library chooses its kernel by the number of rows, and another kernel adds up in another order; so bits may
differ. The share of texts whose bits are equal, and the largest cosine distance, stand in the report of `make gpu`.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.ours import Ours
from benchmarks.workloads import lognormal, token_ids

pytestmark = pytest.mark.gpu

LENGTHS = lognormal(32, seed=2)
FORMS = {
    "jina-colbert-v2": ((1024, 1024), (1024, 4096), (4096, 1024), (1024, 128)),
    "gritlm-7b": ((4096, 4096), (4096, 1024), (4096, 14336), (14336, 4096)),
    "qwen3-embedding-0.6b": ((1024, 2048), (1024, 1024), (2048, 1024), (1024, 3072), (3072, 1024)),
    "bge-base-en": ((768, 768), (768, 3072), (3072, 768)),
}
"""Numbers in and out of each model's linear layers."""
Tell = Callable[[str, object], None]


def told(among: Sequence[Tensor], alone: Sequence[Tensor], tell: Tell) -> float:
    """The largest cosine distance of two rows of the same text [L, D]; both figures go into the report."""
    pairs = list(zip(among, alone, strict=True))
    furthest = max(float(1 - torch.cosine_similarity(a.double(), b.double()).min()) for a, b in pairs)
    tell("% of texts with equal bits", round(100 * sum(torch.equal(a, b) for a, b in pairs) / len(pairs), 1))
    tell("largest cosine distance", float(f"{furthest:.2g}"))
    return furthest


@pytest.mark.parametrize(
    ("inputs", "outputs"), [pytest.param(*form, id=f"{name} {form}") for name, each in FORMS.items() for form in each]
)
def test_a_linear_layer_gives_a_text_the_same_rows(
    cuda: torch.device, inputs: int, outputs: int, record_property: Tell
) -> None:
    layer = torch.nn.Linear(inputs, outputs, device=cuda, dtype=torch.bfloat16)
    states = torch.randn(sum(LENGTHS), inputs, device=cuda, dtype=torch.bfloat16)
    with torch.inference_mode():
        among, alone = layer(states).split(LENGTHS), [layer(each) for each in states.split(LENGTHS)]
    assert told(among, alone, record_property) < 2e-5


@pytest.mark.parametrize("name", ["tiny-bert", "bge-base-en", "tiny-qwen3", "qwen3-embedding-0.6b"])
def test_a_model_gives_a_text_the_same_vector(cuda: torch.device, name: str, record_property: Tell) -> None:
    """Through every layer; as close as its own bfloat16 is to float32."""
    engine = Ours(f"random:{name}", device=str(cuda), dtype="auto")
    texts = token_ids(LENGTHS, 2, engine.model.vocabulary_size)
    among, alone = (
        [torch.from_numpy(each.copy()) for run in runs for each in engine.embed(run)[:, None]]
        for runs in ([texts], [[each] for each in texts])
    )
    assert told(among, alone, record_property) < 1e-2
