"""Conversations: their turns, history, settings, and tools."""
