"""Who is served when: what the next step is made of, how fast steps are, and which jobs are refused on arrival."""
