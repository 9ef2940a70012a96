"""Foundations that all other packages use."""
