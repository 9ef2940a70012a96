"""Canisters, their contents, and their encoding as lines of JSON.

Frozen values only: nothing here reads files, knows providers, or writes to a terminal.
"""
