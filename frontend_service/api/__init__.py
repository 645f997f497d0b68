"""How people reach the frontend: a folder a protocol. A door reads, writes and tells errors; it decides nothing."""
