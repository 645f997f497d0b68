"""Layers that see only a part of the text keep less of it, and give what the model by itself gives."""

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
from gpu_worker.model.verify.in_pieces import cutting
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.horizon import Horizon
from gpu_worker.ragged.layer_states import PLACES, RecentStates
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.sequence_cache import SequenceCache
from gpu_worker.ragged.text_bytes import TextBytes
from gpu_worker.ragged.token_types import Ids
from gpu_worker.random_models import miniature
from support.native import LIBRARY
from support.tiny import CPU, random_ids, referee

pytestmark = pytest.mark.usefixtures("one_thread")
CHUNKS = (16, 64, 128)
HEAD_BYTES = 2 * 16 * 4
"""A token's key and value in a head of the models, in float32."""
HIDDEN_BYTES = 64 * 4
RECENT = {"mistral": 3, "gemma2": 2, "gemma3_text": 2, "llama4_text": 2, "modernbert-decoder": 1, "cohere2": 2}
"""How many of the three layers see only a part of the text."""
HEADS = dict.fromkeys(RECENT, 2) | {"modernbert-decoder": 4}
"""Heads of keys and values in each layer."""
OFTEN = ("mistral", "gemma3_text", "llama4_text")
KERNELS: list[PackedAttention] = [OneByOne(), EqualRuns()]
KERNELS += [] if LIBRARY.missing else [NativeAttention(LIBRARY)]
TOLERANCE = 1e-5
"""Largest difference of hidden states of unit length."""


def built(kind: str, reach: int) -> Any:
    """A small model with seeded weights, whose windows or chunks have `reach` tokens."""
    return make(kind, **{"attention_chunk_size" if kind == "llama4_text" else "sliding_window": reach})


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


def kept_of(kind: str, reach: int) -> TextBytes:
    """What is kept of a text, counted by hand."""
    recent, token_bytes = RECENT[kind], HEADS[kind] * HEAD_BYTES
    of_all = (3 - recent) * token_bytes + HIDDEN_BYTES
    return TextBytes(token_bytes=of_all, recent=((PLACES * (reach - 1), recent * token_bytes),))


def tensors_of(cache: SequenceCache) -> list[Tensor]:
    """All tensors of layers that keep only recent tokens."""
    layers = [layer.states for layer in cache._layers]
    recent = [states for states in layers if isinstance(states, RecentStates)]
    return [tensor for states in recent for both in states._before.values() for tensor in both]


def text_of(length: int, seed: int = 0) -> Ids:
    """Token ids."""
    return np.array(random_ids([length], vocabulary=100, seed=seed)[0], dtype=np.int32)


class Pieces:
    """A text in pieces, each in a step of its own beside a short text, with up to two steps under way."""

    def __init__(self, encoder: PackedEncoder, text: Ids, sizes: list[int], kept: TextBytes) -> None:
        self._encoder, self._text, self._kept = encoder, text, kept
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
                self.cache.collected = self._bounds[collected][1]
                collected += 1
        return self.cache.hidden

    def __len__(self) -> int:
        return len(self._bounds)

    def _compute(self, turn: int) -> None:
        piece = Piece(self._text, *self._bounds[turn], self.cache)
        batch = RaggedBatch.pack([self._text[:3]], CPU.device, pieces=[piece])
        self.cache.add_hidden(piece.start, self._encoder(batch)[batch.piece_rows()[0]])
        assert self.cache.bytes <= self._kept.of(len(self._text))
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors_of(self.cache))


@pytest.mark.parametrize("search", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in RECENT]
)
def test_pieces_give_what_the_model_itself_gives(kind: str, search: bool) -> None:
    """Windows and chunks smaller than pieces, equal and larger; in all layers, or beside layers that see all."""

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
        found = Pieces(PackedEncoder(packed, kernel), text, cut, kept_of(kind, sizes[reach])).run(chance)
        expected = alone(input_ids=torch.tensor(text)[None]).last_hidden_state[0]
        assert (F.normalize(found, dim=1) - F.normalize(expected, dim=1)).abs().max() <= TOLERANCE

    check()


@torch.inference_mode()
@pytest.mark.parametrize(("kind", "reach"), [("mistral", 16), ("gemma2", 16), ("llama4_text", 24)])
def test_the_bytes_that_are_kept_are_bounded_by_the_window(kind: str, reach: int) -> None:
    """However long the text: what windowed layers keep does not grow, and nothing else of the pieces stays alive."""
    _, packed = models(kind, reach)
    encoder, windowed = PackedEncoder(packed, KERNELS[-1]), []
    for length in (200, 400):
        text = text_of(length)
        pieces = Pieces(encoder, text, [40] * (length // 40), kept_of(kind, reach))
        pieces._bounds.pop()  # the last piece gives everything back
        pieces._compute(0)
        for turn in range(1, len(pieces)):
            pieces._compute(turn)
            pieces.cache.collected = pieces._bounds[turn - 1][1]
        windowed.append(sum(tensor.nbytes for tensor in tensors_of(pieces.cache)))
        assert pieces.cache.bytes == windowed[-1] + length * kept_of(kind, reach).token_bytes
    most = PLACES * (reach - 1) * RECENT[kind] * HEADS[kind] * HEAD_BYTES
    assert 0 < windowed[0] <= most
    assert 0 < windowed[1] <= most


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["gemma3n_text", "gemma4_text"])
@pytest.mark.parametrize("reach", [16, 200])
def test_layers_that_share_keys_keep_them_once(kind: str, reach: int) -> None:
    """Of three layers the last has the keys and values of the first, and its own queries."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    changes = {"num_kv_shared_layers": 1, "layer_types": types, "sliding_window": reach}
    register()
    alone, packed = make(kind, **changes), make(kind, **changes)
    make_packed(packed)
    text = text_of(200)
    expected = alone(input_ids=torch.tensor(text)[None]).last_hidden_state[0]
    for kernel in KERNELS:
        pieces = Pieces(PackedEncoder(packed, kernel), text, [40, 1, 70, 89], TextBytes(token_bytes=1 << 20))
        found = pieces.run(random.Random(reach))
        assert (F.normalize(found, dim=1) - F.normalize(expected, dim=1)).abs().max() <= TOLERANCE
        assert len(pieces.cache._layers) == 2


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "llama4_text"])
def test_what_is_kept_is_seen_at_load(kind: str) -> None:
    """By a piece of one token; the limits of texts and the budget go by it."""
    model = built(kind, 16)
    register()
    reference = referee(model)
    assert cutting(PackedEncoder(model, OneByOne()), reference).text_bytes == kept_of(kind, 16)


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "llama4_text"])
def test_wrong_keys_of_windowed_layers_are_seen_at_load(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's texts are longer than a window, if not by much. It gives back what no piece needs any more."""
    extend, later, earlier = RecentStates.extend, set[int](), set[int]()

    def zeroed(states: RecentStates, start: int, key: Tensor, value: Tensor, collected: int) -> Any:
        seen = extend(states, start, key, value, collected)
        later.update(place for place in states._before if place > start)
        earlier.update(place for place in states._before if place < start)
        for keys, _ in states._before.values():
            keys.zero_()
        return seen

    monkeypatch.setattr(RecentStates, "extend", zeroed)
    model = built(kind, 100)
    register()
    assert "do not run in pieces" in cutting(PackedEncoder(model, OneByOne()), referee(model)).refusal
    assert later
    assert not earlier


@given(st.integers(1, 500), st.lists(st.tuples(st.integers(0, 100), st.integers(1, 999)), max_size=3), st.data())
def test_the_longest_text_is_the_one_whose_bytes_fit(
    token_bytes: int, recent: list[tuple[int, int]], data: st.DataObject
) -> None:
    """One token more does not."""
    kept = TextBytes(token_bytes=token_bytes, recent=tuple(recent))
    available = data.draw(st.integers(0, 2 * kept.of(300)))
    longest = int(kept.longest(available))
    assert kept.of(longest) <= available < kept.of(longest + 1)


@given(
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 30),
    st.integers(0, 100),
)
def test_the_first_token_that_is_seen_is_what_the_mask_says(window: int | None, chunk: int | None, token: int) -> None:
    """And nobody sees more earlier tokens than is told."""
    horizon = Horizon(window=window, chunk=chunk)
    seen = [
        other
        for other in range(token + 1)
        if (window is None or token - other < window) and (chunk is None or token // chunk == other // chunk)
    ]
    assert horizon.first_seen(token) == seen[0]
    assert len(seen) - 1 <= horizon.most_seen
    assert horizon.first_seen(token) <= horizon.first_seen(token + 1)
