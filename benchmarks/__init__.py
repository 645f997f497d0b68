"""Measurements, side by side in one process, written as JSON; the README's figures are rendered from them."""
