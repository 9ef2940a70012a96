"""Tools, their schemas, and the execution of a turn's calls."""
