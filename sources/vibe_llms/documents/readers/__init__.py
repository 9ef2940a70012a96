"""One module for each format; the rows of `[documents.readers]` name them."""
