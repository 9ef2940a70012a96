"""Readers, one module for each format, named by the rows of `[documents.readers]`."""
