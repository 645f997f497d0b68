"""Requests and replies of each family of clients <-> domain types, both directions side by side."""
