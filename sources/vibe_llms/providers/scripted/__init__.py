"""The embedded provider: replies from a script; no network, no key, no weights.

Its model `demo` holds a small conversation about this library. With a script of your own it is the
double to test programs with: text, reasoning, tool calls, delays, errors and cuts, on demand.
"""

from vibe_llms.providers.registry import register
from vibe_llms.providers.scripted.client import ScriptedProvider

register("scripted", ScriptedProvider)
