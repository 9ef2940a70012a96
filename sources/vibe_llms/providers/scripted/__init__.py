"""Embedded provider with scripted replies, without a network, keys, or weights.

Its model `demo` holds a short conversation about this library. With your own script it is a test
double for text, reasoning, tool calls, delays, errors, and interrupted streams.
"""

from vibe_llms.providers.registry import register
from vibe_llms.providers.scripted.client import ScriptedProvider

register("scripted", ScriptedProvider)
