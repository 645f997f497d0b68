"""Layers that see only a part of the text give in pieces what the model by itself gives."""

import random
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import CONFIG_MAPPING

from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import OneByOne, PackedAttention, register
from gpu_worker.kernels.attention.native import NativeAttention
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.execution import make_packed
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece, SequenceCache
from gpu_worker.ragged.texts import Ids
from harness.random_models import miniature
from support.native import LIBRARY
from support.tiny import CPU, random_ids

pytestmark = pytest.mark.usefixtures("one_thread")
CHUNKS = (16, 64, 128)
KINDS = ("mistral", "gemma2", "gemma3_text", "modernbert-decoder", "cohere2")
OFTEN = ("mistral", "gemma3_text")
KERNELS: list[PackedAttention] = [OneByOne(), EqualRuns()]
KERNELS += [] if LIBRARY.missing else [NativeAttention(LIBRARY)]
TOLERANCE = 1e-5
"""Largest difference of hidden states of unit length."""


def built(kind: str, reach: int) -> Any:
    """A small model with seeded weights, whose windows have `reach` tokens."""
    return make(kind, sliding_window=reach)


def make(kind: str, **changes: Any) -> Any:
    """A small model with seeded weights, whose config has these changes."""
    config = miniature.config_of(kind, **changes)
    torch.manual_seed(7)
    model = miniature.model_class(CONFIG_MAPPING[kind])(config).eval()
    miniature.widen(model, 0.2)
    return model


@cache
def models(kind: str, reach: int) -> tuple[Any, Any]:
    """The model as it is, and its twin that runs packed."""
    register()
    packed = built(kind, reach)
    make_packed(packed)
    return built(kind, reach), packed


def text_of(length: int, seed: int = 0) -> Ids:
    return np.array(random_ids([length], vocabulary=100, seed=seed)[0], dtype=np.int32)


class Pieces:
    """A text in pieces, each in a step of its own beside a short text, with up to two steps under way."""

    def __init__(self, encoder: PackedEncoder, text: Ids, sizes: list[int]) -> None:
        self._encoder, self._text = encoder, text
        self.cache = SequenceCache(len(text))
        self._bounds = list(pairwise(accumulate(sizes, initial=0)))

    def run(self, chance: random.Random) -> Tensor:
        """Computes all pieces; some steps fail after they were computed, and so does the one behind them."""
        collected, suspect = 0, False
        for turn in range(len(self)):
            self._compute(turn)
            while collected <= turn and (
                suspect or turn - collected == 1 or turn + 1 == len(self) or chance.random() < 0.6
            ):
                failed = suspect or chance.random() < 0.2
                if failed:
                    self._compute(collected)
                suspect = failed and collected < turn
                collected += 1
        return self.cache.hidden

    def __len__(self) -> int:
        return len(self._bounds)

    def _compute(self, turn: int) -> None:
        piece = Piece(self._text, *self._bounds[turn], self.cache)
        batch = RaggedBatch.pack([self._text[:3]], CPU.device, pieces=[piece])
        self.cache.add_hidden(piece.start, self._encoder(batch)[batch.piece_rows()[0]])


@pytest.mark.parametrize("search", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in KINDS]
)
def test_pieces_give_what_the_model_itself_gives(kind: str, search: bool) -> None:
    """Windows smaller than pieces, equal and larger; in all layers, or beside layers that see all."""

    @settings(deadline=None, max_examples=300 if search else 20)
    @given(
        st.sampled_from(CHUNKS),
        st.sampled_from(["tiny", "smaller", "equal", "larger", "as the text"]),
        st.integers(0, 1 << 32),
        st.sampled_from(KERNELS),
    )
    @torch.inference_mode()
    def check(chunk: int, reach: str, seed: int, kernel: PackedAttention) -> None:
        sizes = {"tiny": 2, "smaller": chunk - 5, "equal": chunk, "larger": chunk + 20, "as the text": 3 * chunk + 1}
        alone, packed = models(kind, sizes[reach])
        chance = random.Random(seed)
        length = chance.choice([chunk, chunk + 1, 2 * chunk, 3 * chunk + 1, chance.randint(1, 3 * chunk + 1)])
        text = text_of(length, seed)
        bounds = sorted({0, length, *range(chunk, length, chunk), *(chance.randrange(length) for _ in range(2))})
        cut = [stop - start for start, stop in pairwise(bounds)]
        found = Pieces(PackedEncoder(packed, kernel), text, cut).run(chance)
        expected = alone(input_ids=torch.tensor(text)[None]).last_hidden_state[0]
        assert (F.normalize(found, dim=1) - F.normalize(expected, dim=1)).abs().max() <= TOLERANCE

    check()


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
@pytest.mark.parametrize("reach", [16, 200])
def test_layers_that_share_keys_give_in_pieces_what_they_give_whole(kind: str, reach: int) -> None:
    """Of three layers the last has the keys and values of the first, and its own queries."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    changes = {"num_kv_shared_layers": 1, "layer_types": types, "sliding_window": reach}
    register()
    alone, packed = make(kind, **changes), make(kind, **changes)
    make_packed(packed)
    text = text_of(200)
    expected = alone(input_ids=torch.tensor(text)[None]).last_hidden_state[0]
    for kernel in KERNELS:
        pieces = Pieces(PackedEncoder(packed, kernel), text, [40, 1, 70, 89])
        found = pieces.run(random.Random(reach))
        assert (F.normalize(found, dim=1) - F.normalize(expected, dim=1)).abs().max() <= TOLERANCE
