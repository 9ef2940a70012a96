"""Texts to vectors, so that memory finds what means the same in other words."""
