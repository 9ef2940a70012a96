"""YAML of other programs, without the aliases with which a small text becomes a huge value."""

from __future__ import annotations

from typing import Any


def read_yaml(data: bytes) -> Any:
    """Return the value of YAML; raises `ValueError` if it is not valid or has aliases."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = data.decode("utf-8-sig")
        if any(isinstance(one, yaml.AliasToken) for one in _scan(text, loader)):
            raise ValueError("its YAML has aliases, which are not read")
        return yaml.load(text, loader)  # noqa: S506  (one of the safe loaders)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"it is not valid YAML: {str(error).splitlines()[0]}") from error


def _scan(text: str, loader: Any) -> Any:
    import yaml

    # Most texts have none of their signs.
    return yaml.scan(text, loader) if "*" in text and "&" in text else ()
