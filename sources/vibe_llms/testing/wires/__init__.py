"""The wire formats of providers, from the server's side: one file each, and what they share."""
