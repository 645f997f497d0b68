"""Requests and replies of text-embeddings-inference. `routes.py` has the paths."""
