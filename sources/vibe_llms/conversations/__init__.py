"""Conversations: their turns, their history, their settings, their tools."""
