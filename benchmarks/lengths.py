"""How long texts are in workloads. numpy only; seeded."""

import numpy as np
import numpy.typing as npt

SIGMA, SHORTEST, LONGEST = 0.8, 4, 512


def lognormal(count: int, seed: int, mean: float = 126.0, longest: int = LONGEST) -> npt.NDArray[np.int64]:
    """[count] tokens, lognormal (sigma 0.8) with that mean after cutting at 4 and `longest`."""
    lengths, scale = np.full(count, SHORTEST), mean
    for _ in range(40):  # cutting takes from the mean; find the scale that restores it
        draw = np.random.default_rng(seed).lognormal(np.log(scale) - SIGMA**2 / 2, SIGMA, count)
        lengths = np.clip(draw.round(), SHORTEST, longest).astype(np.int64)
        scale *= mean / lengths.mean()
    return lengths
