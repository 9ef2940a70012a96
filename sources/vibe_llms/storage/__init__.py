"""Stores conversations as lines, contents under their hash, and a derived index."""
