"""What is said: canisters, their contents, and their form as one JSON line.

Frozen values only; nothing here reads a file, knows a provider or draws on a terminal.
"""
