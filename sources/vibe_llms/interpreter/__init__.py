"""The Python interpreter: an MCP server that runs code in Jupyter kernels, each in a cage.

It is a separate program, `python -m vibe_llms.interpreter`, which the included row
`[ensembles.python]` starts. Nothing else in this library imports it.
"""
