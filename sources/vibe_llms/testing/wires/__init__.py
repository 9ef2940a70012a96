"""The wire formats of providers on the server's side: one file each, and shared code."""
