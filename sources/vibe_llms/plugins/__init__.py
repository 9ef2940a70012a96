"""Packages that a row installs on demand: pinned, asked for, in folders of their own."""
