"""Models that shout back what they were told."""

from vibe_llms.providers.core import register
from vibe_llms_shout.client import ShoutProvider

register("shout", ShoutProvider)
