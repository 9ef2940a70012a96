"""What is kept: conversations as lines, contents under their hash, and an index derived of both."""
