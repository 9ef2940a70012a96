"""Conversations as texts to read or to keep: Markdown, HTML, and JSON."""
