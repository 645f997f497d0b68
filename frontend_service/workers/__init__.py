"""The link to the worker: what the service sees of it, and how it is reached. The transport stays in here."""
