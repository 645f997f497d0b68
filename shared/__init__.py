"""The contract in Python, used by both services: no torch, no tokenizers, no model."""

__version__ = "0.1.0"
