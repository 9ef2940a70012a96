"""The Python interpreter: an MCP server that runs code in Jupyter kernels, each in a cage.

It is a program of its own, `python -m vibe_llms.interpreter`, which the shipped row
`[ensembles.python]` starts. Nothing else of this library imports it.
"""
