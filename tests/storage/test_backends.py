"""The stores of a backend beside its archive."""

from __future__ import annotations

import pytest

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.storage.backends import Backend, StoreKind, open_backend


def test_a_backend_of_another_package_registers_its_own_stores() -> None:
    shelves: StoreKind[str] = StoreKind("shelves")

    @shelves.register("home")
    def produce_shelf(backend: Backend) -> str:
        return f"a shelf in {backend.address}"

    backend = open_backend(load_configuration())
    assert shelves.produce(backend) == f"a shelf in {backend.address}"
    backend.kind = "cellar"
    assert shelves.find(backend) is None
    with pytest.raises(ConfigurationError, match="this backend has no store for shelves"):
        shelves.produce(backend)
    shelves.register("cellar")(lambda backend: f"a shelf in the {backend.kind}")
    assert shelves.produce(backend) == "a shelf in the cellar"
