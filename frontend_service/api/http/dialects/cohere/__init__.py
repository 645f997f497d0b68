"""Cohere's requests and replies, with the fields that Jina and vLLM add. `routes.py` has the paths."""
