"""Controls for a script: it takes all of them, and none changes what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vibe_llms.controls import Controls
from vibe_llms.providers.interfaces import Model


class ScriptedControlsProcessor:
    """Controls to the members of a recorded request."""

    def nativize(self, controls: Controls, model: Model) -> Mapping[str, Any]:
        """The controls that are set, by their names."""
        return controls.given()
