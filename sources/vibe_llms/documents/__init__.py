"""Documents: the text of files, where each part of it came from, and the passages that answer."""
