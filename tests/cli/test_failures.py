"""Errors at the terminal: words, kinds and statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from tests.cli.command import streams
from vibe_llms.base import exceptions
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ControlInvalid,
    PackageMissing,
    ProviderOverloaded,
    RateLimited,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.base.redaction import remember
from vibe_llms.cli.failures import (
    STATUSES,
    describe,
    explain,
    message_of,
    report,
    status_of,
)


def survey_errors(base: type[VibeLlmsError] = VibeLlmsError) -> Iterator[type[VibeLlmsError]]:
    for error in base.__subclasses__():
        if error.__module__ == exceptions.__name__:
            yield error
            yield from survey_errors(error)


#: The exit statuses that CLI.md promises, by the family of the error.
PROMISED = {
    "StorageError": 1,
    "ProviderError": 1,
    "RequestRefused": 1,
    "ContextOverflow": 1,
    "RequestError": 2,
    "ControlInvalid": 2,
    "OutputCut": 65,
    "OutputInvalid": 65,
    "ModelNotFound": 66,
    "ConversationNotFound": 66,
    "ConversationAmbiguous": 66,
    "AttachmentUnreadable": 66,
    "CollectionNotFound": 66,
    "AgentNotFound": 66,
    "SkillUnavailable": 66,
    "RunNotFound": 66,
    "ProviderUnreachable": 69,
    "ProviderOverloaded": 69,
    "ReplyTimeout": 69,
    "RateLimited": 75,
    "PaymentRequired": 75,
    "CredentialMissing": 77,
    "CredentialRefused": 77,
    "ConfigurationError": 78,
    "RegistrationError": 78,
    "PackageMissing": 78,
    "TurnInterrupted": 130,
}


@pytest.mark.parametrize("name", PROMISED)
def test_every_family_of_errors_has_its_status(name: str) -> None:
    error = getattr(exceptions, name)
    assert status_of(error.__new__(error)) == PROMISED[name]


def test_every_error_has_a_status_that_is_documented() -> None:
    for error in survey_errors():
        assert status_of(error.__new__(error)) in {1, *PROMISED.values()}, error


def test_no_row_of_the_table_is_hidden_by_one_above_it() -> None:
    for index, (kind, _) in enumerate(STATUSES):
        assert not any(issubclass(kind, above) for above, _ in STATUSES[:index]), kind


@pytest.mark.parametrize(
    ("error", "words", "status"),
    [
        (ConfigurationError("bad", file="f.toml", key="k"), "f.toml, key 'k': bad", 78),
        (StorageError("it is full;\nfree some", path="/x"), "/x: it is full; free some", 1),
        (ControlInvalid("no", control="c", model="m"), "m: no", 2),
        (click.UsageError("What?"), "What? See: vibe-llms --help", 2),
        (click.ClickException("What?"), "What?", 2),
        (FileNotFoundError(2, "No such file", "f"), "f: No such file", 1),
        (OSError(28, "No space left"), "No space left", 1),
        (OSError("odd"), "OSError: odd", 1),
        (ZeroDivisionError("x"), "ZeroDivisionError: x (a bug; --debug shows where)", 1),
        (KeyboardInterrupt(), "interrupted (a bug; --debug shows where)", 130),
    ],
)  # fmt: skip
def test_an_error_is_one_line(error: BaseException, words: str, status: int) -> None:
    assert explain(error) == words
    assert status_of(error) == status


def test_bad_usage_names_the_help() -> None:
    context = click.Context(click.Command("list"), info_name="vibe-llms list")
    assert explain(click.UsageError("What?", context)) == "What? See: vibe-llms list --help"


def test_the_advice_of_a_server_is_printed() -> None:
    for kind in (RateLimited, ProviderOverloaded):
        error = kind("slow down", provider="p")
        error.retry_after = 12.4
        limited = "rate limited: " if kind is RateLimited else ""
        assert explain(error) == f"p: {limited}slow down; try again in 12 s"
        assert describe(error)["retry_after"] == 12.4
        error.retry_after = None
        assert "retry_after" not in describe(error)


def test_an_error_goes_to_stderr_and_with_json_to_stdout_too() -> None:
    error = PackageMissing("x", package="p", command="pip install p")
    for arguments in (["--json"], ["chat", "--jsonl", "x"]):
        with streams() as (output, errors):
            assert report(error, arguments) == 78
            reported = json.loads(output.text)
            assert reported == {
                "error": {"kind": "package-missing", "message": str(error), "status": 78}
            }
            assert errors.text == f"vibe-llms: {error}\n"
    with streams() as (output, errors):
        assert report(error, ["chat"]) == 78
        assert output.text == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_reported_to_programs_only(error: BaseException) -> None:
    with streams() as (output, errors):
        assert report(error, []) == 130
        assert (output.text, errors.text) == ("", "")
    with streams(terminals="stderr") as (output, errors):
        assert report(error, []) == 130
        assert (output.text, errors.text) == ("", "\n")
    with streams() as (output, errors):
        assert report(error, ["--json"]) == 130
        assert json.loads(output.text)["error"]["kind"] == "interrupted"
        assert errors.text == ""


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(5, "x"), "system"), (ValueError(), "unexpected"), (click.UsageError(""), "usage")],
)
def test_every_error_has_a_kind_for_programs(error: BaseException, kind: str) -> None:
    assert describe(error)["kind"] == kind


def test_no_key_is_in_the_words_or_in_the_traceback() -> None:
    remember("canary-key-0123456789")
    with pytest.raises(ValueError, match="canary") as caught:
        raise ValueError("refused: " + "canary-key-0123456789")
    with streams() as (output, errors):
        report(caught.value, ["--json", "--debug"])
        assert "Traceback" in errors.text
        assert "canary" not in message_of(caught.value) + output.text + errors.text


def test_hostile_words_do_not_drive_the_terminal() -> None:
    with streams(terminals="stderr") as (_, errors):
        report(StorageError("\x1b[2J\x07", path="\u202ex"), [])
        assert errors.text == "vibe-llms: \\u202ex: ␛[2J␇\n"
