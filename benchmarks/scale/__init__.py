"""Frontends and links beside workers whose steps take a set time: real processes, and all of it in virtual time."""
