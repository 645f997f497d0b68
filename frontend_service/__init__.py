"""The frontend: texts in, tokens to the worker, answers out. CPU only; any number of replicas; no torch."""
