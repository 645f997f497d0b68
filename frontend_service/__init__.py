"""The frontend: takes requests, tokenises their texts, sends jobs to workers, replies. CPU only; no torch."""
