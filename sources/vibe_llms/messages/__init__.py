"""Canisters, their contents, and their form as one line of JSON.

Frozen values only; nothing here reads files, knows providers or writes to a terminal.
"""
