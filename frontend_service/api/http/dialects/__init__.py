"""Requests and replies of each dialect <-> domain types, both directions side by side."""
