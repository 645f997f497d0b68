"""How released clients of HTTP are asked, and what they are asked of."""

import base64
from typing import Any

import numpy as np

APIS = {"http-listen": "127.0.0.1:0"}
MODEL, KEY = "tiny-bert", "sv-the-key-of-search"
TEXTS = [("w1 " * (number % 9) + f"w{number} w{number * 7 % 90}") for number in range(40)]
QUERY, DOCUMENTS = "w1 w2", ["w3 w4", "w2 w1 w5", "w8", "w1 w2", "w9 w7 w6"]
BOTH = ("plain", "async")


def same_bits(told: Any, expected: np.ndarray) -> None:
    assert np.array(told, dtype="<f4").tobytes() == expected.tobytes()


def decoded(told: list[str]) -> np.ndarray:
    """[N, D] float32."""
    return np.array([np.frombuffer(base64.b64decode(each), dtype="<f4") for each in told])
