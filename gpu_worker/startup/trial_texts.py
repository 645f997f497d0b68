"""Texts of no meaning, for the steps that run before anything is served. numpy only."""

from collections.abc import Sequence

import numpy as np

from shared.ragged import RaggedTokens


def trial_texts(lengths: Sequence[int], vocabulary: int) -> RaggedTokens:
    """Texts of these lengths, of random ids, always the same: no two of some length begin alike, so that none is spared
    what it would take. The ids are of the middle half of the vocabulary, where most have no special tokens."""
    generator, quarter = np.random.default_rng(0), vocabulary // 4
    return RaggedTokens.of([generator.integers(quarter, vocabulary - quarter, length).tolist() for length in lengths])
