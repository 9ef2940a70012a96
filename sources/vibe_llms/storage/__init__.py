"""Storage: conversations as lines, contents by hash, and a derived index."""
