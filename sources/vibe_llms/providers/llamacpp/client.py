"""Provider and client of llama.cpp, which find models in files and keep them loaded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vibe_llms.base.exceptions import ConfigurationError, ModelNotFound, SessionClosed
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.messages.events import EventHandler
from vibe_llms.providers.attributes import load_attributes
from vibe_llms.providers.interfaces import ProviderConfiguration
from vibe_llms.providers.llamacpp.engines import CLOSED, Engine
from vibe_llms.providers.llamacpp.files import (
    Facts,
    GgufInvalid,
    locate_model,
    read_facts,
    survey_files,
)
from vibe_llms.providers.llamacpp.model import LlamacppModel
from vibe_llms.providers.llamacpp.package import LlamaModel
from vibe_llms.providers.llamacpp.settings import LlamacppSettings


class LlamacppProvider:
    """Provider row of this module."""

    def __init__(
        self, name: str, configuration: ProviderConfiguration, event_handler: EventHandler
    ) -> None:
        self.name = name
        self.event_handler = event_handler
        self._configuration = configuration
        self._settings = configuration.configuration.read(
            LlamacppSettings, configuration.settings, "providers", name
        )
        if self._settings.chat_format is not None and self._settings.chat_template:
            raise configuration.configuration.error(
                "set chat-format or chat-template, not both", "providers", name, "chat-format"
            )

    def produce_client(self) -> LlamacppClient:
        """Return a new client, which the caller must close."""
        return LlamacppClient(self, self._configuration, self._settings)


class LlamacppClient:
    """Client with the models that were found and those that are loaded."""

    def __init__(
        self,
        provider: LlamacppProvider,
        configuration: ProviderConfiguration,
        settings: LlamacppSettings,
    ) -> None:
        self.provider = provider.name
        self.event_handler = provider.event_handler
        self.stream = configuration.stream
        self.settings = settings
        self.integrator = load_attributes(configuration.configuration, provider.name, "llamacpp")
        self._folder = configuration.configuration.places.configuration
        self._facts: dict[Path, tuple[object, Facts]] = {}
        #: Loaded models by file, from the least to the most recently used.
        self._engines: dict[Path, Engine] = {}
        self._closed = False

    async def access_model(self, name: str) -> LlamacppModel:
        """Return the model in a file: an absolute path, or one in the models folder.

        Raise `ModelNotFound` if the file does not exist or is not a GGUF model. Only the head of
        the file is read.
        """
        if not name:
            raise ModelNotFound(
                f"which model of {self.provider!r}? Give the path of a file: "
                f"{self.provider}/PATH.gguf"
            )
        path = locate_model(name, self.settings.models_folder)
        try:
            facts = await asyncio.to_thread(self._access_facts, path)
        except GgufInvalid as error:
            raise ModelNotFound(
                f"{self.provider!r} has no model {name!r}: {path} {error}; "
                f"list the models of its models-folder: vibe-llms models {self.provider}"
            ) from error
        # With an absolute path the conversation can be continued where `~` leads elsewhere.
        called = str(path) if name.startswith("~") else name
        own = await asyncio.to_thread(self._read_template)
        return LlamacppModel(self, called, path, facts, own)

    async def survey_models(self) -> Sequence[LlamacppModel]:
        """Return the models in the models folder and its subfolders; skip other files."""
        folder = self.settings.models_folder
        if not folder:
            return []
        models: list[LlamacppModel] = []
        if not await asyncio.to_thread(os.path.isdir, os.path.expanduser(folder)):  # noqa: ASYNC240
            raise ConfigurationError(
                f"folder {folder!r} not found",
                table=f"providers.{self.provider}",
                key="models-folder",
            )
        for name in await asyncio.to_thread(survey_files, folder):
            try:
                models.append(await self.access_model(name))
            except ModelNotFound:
                # An incomplete download, or a part of another model.
                continue
        return models

    async def access_engine(self, path: Path, produce: Callable[[], LlamaModel]) -> Engine:
        """Return the engine of a file's model, which `produce` loads when it is first used.

        If too many models would be loaded, free the least recently used one that is not at work.
        """
        while not self._closed:
            if (engine := self._engines.pop(path, None)) is not None:
                self._engines[path] = engine
                return engine
            idle = [path for path, engine in self._engines.items() if not engine.busy]
            if len(self._engines) < self.settings.loaded_models or not idle:
                self._engines[path] = engine = Engine(path.name, produce)
                return engine
            await self._engines.pop(idle[0]).close()
        raise SessionClosed(CLOSED)

    async def close(self) -> None:
        """Halt generation and free all models; safe to call twice."""
        self._closed = True
        engines, self._engines = list(self._engines.values()), {}
        await asyncio.gather(*(engine.close() for engine in engines))

    def _access_facts(self, path: Path) -> Facts:
        try:
            found = os.stat(path)
        except OSError as error:
            raise GgufInvalid(f"cannot be read: {error.strerror}") from error
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = self._facts.get(path)
        if known is None or known[0] != stamp:
            known = self._facts[path] = (stamp, read_facts(path))
        return known[1]

    def _read_template(self) -> str:
        """Read the template named in the row; relative paths begin in the configuration folder."""
        given = self.settings.chat_template
        if not given:
            return ""
        path = self._folder / os.path.expanduser(given)
        try:
            return read_file(path, LARGEST_SETTINGS).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}",
                table=f"providers.{self.provider}",
                key="chat-template",
            ) from error
