"""Controls to the members of a request."""

from collections.abc import Mapping
from typing import Any

from vibe_llms import Controls
from vibe_llms.providers.interfaces import Model


class ShoutControlsProcessor:
    """There is one; others do not come here, since `models.toml` says that no model takes them."""

    def nativize(self, controls: Controls, model: Model) -> Mapping[str, Any]:
        """The members of the request that these controls become."""
        return {} if controls.output_tokens is None else {"words": controls.output_tokens}
