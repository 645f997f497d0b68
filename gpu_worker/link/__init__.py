"""The worker's end of the link to its frontends."""
