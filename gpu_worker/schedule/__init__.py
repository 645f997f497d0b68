"""The jobs of a worker: which are refused, which are served when, and the steps that compute them."""
