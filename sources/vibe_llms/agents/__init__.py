"""Agents and the tools that ask them."""
