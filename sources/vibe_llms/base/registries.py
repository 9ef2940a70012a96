"""Maps names in TOML to factories in built-in and third-party modules.

A row of a registry's table names a module; importing the module registers its factories with
`register`. A module is not imported before its row is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from vibe_llms.base.exceptions import RegistrationError

T = TypeVar("T")


class Row(Struct, frozen=True):
    """One row of a registry: NAME = { module = "...", factory = "...", ... }.

    `settings` are the remaining keys, for the entry itself. `file` is the file that names the
    module, for messages.
    """

    name: str
    module: str
    factory: str = ""
    settings: Mapping[str, Any] = {}
    file: str = ""


class Registry(Generic[T]):
    """Factories of one kind; `table` is the TOML table whose rows name them."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._factories: dict[str, dict[str, T]] = {}

    def register(self, name: str, factory: T) -> None:
        """Register a factory under the calling module, or under the caller of a core wrapper.

        Raises `RegistrationError` if the module has registered another factory under the same name.
        """
        module = _calling_module()
        factories = self._factories.setdefault(module, {})
        if factories.setdefault(name, factory) is not factory:
            raise RegistrationError(
                f"the module {module!r} registers {name!r} twice", table=self.table
            )

    def access(self, row: Row) -> T:
        """Import a row's module and return its factory; raises `RegistrationError` on failure."""
        place = {"file": row.file, "table": f"{self.table}.{row.name}".lstrip(".")}
        try:
            importlib.import_module(row.module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Plugin code may even exit the program.
            # Discard the registrations of a failed import.
            for module in self._modules_of(row.module):
                if module not in sys.modules:
                    del self._factories[module]
            raise RegistrationError(_explain(row.module, error), key="module", **place) from error
        factories = self._factories_of(row.module)
        if row.factory:
            if row.factory in factories:
                return factories[row.factory]
            raise RegistrationError(
                f"the module {row.module!r} does not register {row.factory!r}, "
                f"only {_names(factories)}",
                key="factory",
                **place,
            )
        if len(factories) == 1:
            return next(iter(factories.values()))
        if row.name in factories:
            return factories[row.name]
        if len(own := self._factories.get(row.module, {})) == 1:
            # Modules below it, which another row has imported, are variants.
            return next(iter(own.values()))
        raise RegistrationError(
            f"the module {row.module!r} registers {_names(factories)}; name one with factory = ...",
            key="factory",
            **place,
        )

    def _factories_of(self, module: str) -> dict[str, T]:
        found: dict[str, T] = {}
        for owner in self._modules_of(module):
            found.update(self._factories[owner])
        return found

    def _modules_of(self, module: str) -> list[str]:
        return [one for one in self._factories if one == module or one.startswith(f"{module}.")]


#: Names of functions of the core that pass a registration on.
_REGISTERING = frozenset({"register", "register_ensemble", "register_hook"})


def _calling_module() -> str:
    # Frames: this function, `Registry.register`, perhaps a core wrapper, the registering module.
    own = {__name__}
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__") in own or frame.f_code.co_name in _REGISTERING
    ):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _explain(module: str, error: BaseException) -> str:
    """Return why a module cannot be imported, and what to do."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        if module == error.name or module.startswith(f"{error.name}."):
            return f"module {module!r} not found; is its package installed?"
        return f"the module {module!r} needs {error.name!r}, which is not installed"
    name = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"the module {module!r} cannot be imported: {name}{error}"


def _names(factories: Mapping[str, object]) -> str:
    return ", ".join(repr(name) for name in sorted(factories)) or "nothing"
