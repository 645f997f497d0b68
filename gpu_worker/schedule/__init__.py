"""The jobs that wait: in which order they are served, how fast steps are, and which jobs are refused on arrival."""
