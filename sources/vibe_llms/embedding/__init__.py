"""Embedders turn texts into vectors, to find entries with the same meaning in other words."""
