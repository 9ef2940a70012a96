"""Packages that a row installs on demand: pinned, approved, each in its own folder."""
