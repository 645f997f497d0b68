"""The APIs of the frontend, a folder each.

An API knows its protocol: how requests are read and replies written, which defaults its requests have, and the form of
its errors. What a request is allowed and what it means is decided in `services`.
"""
