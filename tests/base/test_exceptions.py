"""One tree of errors, as it is drawn; each says what failed, and shows no key."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import vibe_llms
from vibe_llms.acp.rpc import RpcError
from vibe_llms.base import exceptions
from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ConfigurationError,
    ConversationAmbiguous,
    PackageMissing,
    ProviderError,
    RateLimited,
    ReplyTimeout,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.base.files import UntrustedFile
from vibe_llms.base.network.connections import AddressRefused
from vibe_llms.base.redaction import remember
from vibe_llms.conversations.digests import DigestRejected
from vibe_llms.conversations.outputs import OutputMismatch
from vibe_llms.ensembles.mcp.stdio import MessageTooLong
from vibe_llms.interpreter.kernels import KernelLost
from vibe_llms.interpreter.server import KernelsBusy
from vibe_llms.invocation.execution import CallSuspended
from vibe_llms.invocation.keywords import CheckTooLong, SchemaInapplicable
from vibe_llms.invocation.results import ResultTooLarge
from vibe_llms.invocation.threads import ThreadsExhausted
from vibe_llms.mcp_server.calls import InputRequired
from vibe_llms.mcp_server.jsonrpc import ProtocolError
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.providers.contract.objects import FormBroken, FormForeign
from vibe_llms.providers.llamacpp.files import GgufInvalid
from vibe_llms.providers.tool_schemas import SchemaUnfit
from vibe_llms.providers.wire import EventTooLarge
from vibe_llms.server.exchanges import Disconnected
from vibe_llms.server.failures import Rejected
from vibe_llms.testing.wires.core import RefusedRequest

ERRORS = {
    name: value
    for name, value in vars(exceptions).items()
    if inspect.isclass(value) and issubclass(value, BaseException)
}
#: Each is caught by its callers and never leaves the library: the execution makes failed results of
#: those of calls, the providers a `ReplyMalformed` of an event, the archive an `ArchiveDamaged` of
#: a line, the turn an `OutputInvalid` of an output, an ensemble an `EnsembleFailed` of a message,
#: the fake server an answer of a refusal, the server, and those for MCP clients and editors, a
#: response, the interpreter a failed result of a kernel's end, the contract plain text, or another
#: request, of a form, a run its waiting.
INNER = {
    *(CallSuspended, ResultTooLarge, ThreadsExhausted),
    *(EventTooLarge, GgufInvalid, LineUnreadable, MessageTooLong, OutputMismatch, RefusedRequest),
    *(Disconnected, InputRequired, ProtocolError, Rejected, RpcError),
    *(AddressRefused, CheckTooLong, DigestRejected, FormBroken, FormForeign, KernelLost),
    *(KernelsBusy,),
    *(SchemaInapplicable, SchemaUnfit, UntrustedFile),
}


def drawn() -> dict[str, str]:
    """The errors in the tree of the docstring, and the parent of each."""
    parents: dict[str, str] = {}
    path: list[str] = []
    tree = (inspect.getdoc(exceptions) or "").split("```")[1]
    for line in tree.splitlines():
        found = re.match(r"^([ │├└─]*)([A-Z]\w+)", line)
        if not found:
            continue
        depth = len(found[1]) // 4
        del path[depth:]
        parents[found[2]] = path[-1] if path else ""
        path.append(found[2])
    return parents


def test_the_tree_is_as_it_is_drawn() -> None:
    tree = {name: cls.__bases__[0].__name__ for name, cls in ERRORS.items()}
    tree["VibeLlmsError"] = ""
    assert drawn() == tree
    assert len(tree) > 35


def test_every_error_of_the_library_is_in_the_tree() -> None:
    for found in pkgutil.walk_packages(vibe_llms.__path__, "vibe_llms."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if (
                inspect.isclass(value)
                and issubclass(value, BaseException)
                and value.__module__ == module.__name__
                and not value.__name__.startswith("_")
                and value not in INNER
            ):
                assert issubclass(value, VibeLlmsError), value
                assert value.__module__ == "vibe_llms.base.exceptions", value


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_says_what_it_means(name: str) -> None:
    assert ERRORS[name].__doc__


def test_an_error_has_a_name_for_machines() -> None:
    assert VibeLlmsError("x").kind == "vibe-llms-error"
    assert RateLimited("x", provider="p").kind == "rate-limited"


def test_an_error_in_the_configuration_says_where_it_is() -> None:
    error = ConfigurationError("wrong", file="f.toml", table="a.b", key="c")
    assert str(error) == "f.toml, [a.b], key 'c': wrong"
    assert (error.file, error.table, error.key) == ("f.toml", "a.b", "c")
    assert str(ConfigurationError("wrong")) == "wrong"
    assert str(ConfigurationError("wrong", key="c")) == "key 'c': wrong"


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    error = PackageMissing("This", package="p", command="pip install p")
    assert str(error) == "This needs the package 'p', which is not installed. Run: pip install p"
    assert (error.package, error.command) == ("p", "pip install p")


def test_errors_of_providers_carry_what_a_program_needs() -> None:
    error = ProviderError("no", provider="p", status=418, code="teapot", request_id="r")
    assert str(error) == "p: no"
    assert (error.provider, error.status, error.code, error.request_id) == ("p", 418, "teapot", "r")
    late = ReplyTimeout("late", provider="p", limit="idle-seconds", seconds=5)
    assert (late.limit, late.seconds) == ("idle-seconds", 5)
    assert RateLimited("x", provider="p").retry_after is None


def test_errors_of_storage_name_the_file() -> None:
    assert str(StorageError("full", path="a/b")) == "a/b: full"
    assert str(StorageError("full")) == "full"
    error = ArchiveDamaged("torn", path="a", line=3, offset=17)
    assert (str(error), error.line, error.offset) == ("a:3: torn", 3, 17)
    assert str(ArchiveDamaged("torn", path="a")) == "a: torn"
    assert ConversationAmbiguous("two", candidates=("a", "b")).candidates == ("a", "b")


def test_no_error_shows_a_key() -> None:
    key = "the-key-of-this-test"
    remember(key)
    for error in (
        VibeLlmsError(f"no {key}"),
        ConfigurationError(f"no {key}", file=key),
        ProviderError(f"no {key}", provider="p", code=key, request_id=key),
        StorageError(f"no {key}", path="p"),
    ):
        assert key not in str(error)
        assert key not in repr(error)
        assert "[secret]" in str(error)
    error = ProviderError("no", provider="p", code=key, request_id=key)
    assert (error.code, error.request_id) == ("[secret]", "[secret]")
    assert VibeLlmsError("count", 5).args == ("count", 5)
