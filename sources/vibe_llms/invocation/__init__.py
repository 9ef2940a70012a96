"""Tools, their schemas, and how the calls of one turn run."""
