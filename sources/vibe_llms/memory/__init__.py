"""Long-term memory: facts, turns and summaries in files that people read, found by words."""
