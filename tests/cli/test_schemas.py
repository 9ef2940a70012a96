"""`--schema`: JSON Schemas in three forms, and answers that follow them or do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, script_of, write_script
from tests.cli.test_repl import hold
from tests.fakes.anthropic import FakeAnthropic
from vibe_llms.base.exceptions import AttachmentUnreadable, RequestError
from vibe_llms.cli.options import read_schema
from vibe_llms.testing.wires.anthropic_replies import text_reply

_ADA = '{ "name": "Ada",\n "born": 1815 }'
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
    "required": ["name", "born"],
}


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("name", {"name": {"type": "string"}}),
        ("name, born int", {"name": {"type": "string"}, "born": {"type": "integer"}}),
        (
            "name: the full name, bio: what: in short\n",
            {
                "name": {"type": "string", "description": "the full name, bio: what: in short"},
            },
        ),
        (
            "\nage int: in years, rounded\n ok bool\nx float\n\n",
            {
                "age": {"type": "integer", "description": "in years, rounded"},
                "ok": {"type": "boolean"},
                "x": {"type": "number"},
            },
        ),
    ],
)
def test_the_short_form_lists_the_members(text: str, properties: dict[str, Any]) -> None:
    schema = read_schema(text)
    assert schema["properties"] == properties
    assert schema["required"] == list(properties)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name, age integr", "'age integr' is not NAME, NAME TYPE or NAME TYPE: DESCRIPTION"),
        ("a b c", "the types are str, int, float, bool"),
        (" , ", "--schema is empty"),
        (": x", "is not NAME"),
        ("{", "--schema: not valid JSON"),
        ('{"a": ' * 5000, "--schema: not valid JSON"),
    ],
)
def test_a_wrong_schema_is_an_error(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_schema(text)


def test_a_schema_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text(json.dumps(_SCHEMA))
    assert read_schema(str(file)) == _SCHEMA
    file.write_text("[]")
    with pytest.raises(RequestError, match="a JSON Schema must be an object"):
        read_schema(str(file))
    for nonesuch in ("person.json", f"{tmp_path}/nonesuch"):
        with pytest.raises(AttachmentUnreadable, match="no such file"):
            read_schema(nonesuch)


def ask(model: str, *arguments: str, schema: object = _SCHEMA, **options: Any) -> Any:
    given = schema if isinstance(schema, str) else json.dumps(schema)
    return invoke("-m", model, "--schema", given, *arguments, "Who wrote it?", **options)


@pytest.mark.parametrize("flags", [[], ["--no-stream"], ["-n"]])
def test_an_answer_that_follows_its_schema_is_printed_as_json(
    claude: FakeAnthropic, flags: list[str]
) -> None:
    claude.replies = [text_reply(_ADA)]
    outcome = ask("anthropic/claude-sonnet-5-5", *flags, schema="name, born int")
    assert outcome == (0, '{"name": "Ada", "born": 1815}\n', "")
    sent = claude.requests[-1].json["output_config"]["format"]["schema"]
    assert sent["required"] == ["name", "born"]


def test_on_a_terminal_it_is_indented(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of(f"{{ text = '''{_ADA}''' }}"))
    outcome = ask(model, terminals="stdout")
    assert outcome.output == '{\n  "name": "Ada",\n  "born": 1815\n}\n'


def test_json_and_jsonl_have_the_value(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of(f"{{ text = '''```json\n{_ADA}\n```''' }}"))
    reported = ask(model, "--json").json
    assert reported["output"] == {"name": "Ada", "born": 1815}
    assert reported["text"].startswith("```json")
    last = json.loads(ask(model, "--jsonl").output.splitlines()[-1])
    assert last["turn"]["output"] == {"name": "Ada", "born": 1815}


def test_only_the_answer_that_fits_is_printed(claude: FakeAnthropic) -> None:
    claude.replies = [text_reply('{"name": "Ada"}'), text_reply(_ADA)]
    outcome = ask("anthropic/claude-sonnet-5-5")
    assert outcome.output == '{"name": "Ada", "born": 1815}\n'
    assert "requesting the output again" in outcome.errors


def test_an_answer_that_does_not_match_is_status_65(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ text = 'Ada, in 1815.' }"))
    outcome = ask(model)
    assert outcome.status == 65
    assert outcome.output == ""
    assert "the output was not valid in" in outcome.error
    reported = ask(model, "--json").json["error"]
    assert (reported["kind"], reported["status"]) == ("output-invalid", 65)


def test_an_answer_that_was_cut_is_status_65(tmp_path: Path) -> None:
    model = write_script(
        tmp_path, script_of("""{ text = '{"name": "A' }""", **{"stop-reason": "'length'"})
    )
    outcome = ask(model, "-q")
    assert outcome.status == 65
    assert "output-tokens" in outcome.error


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--schema", "{"], 2, "not valid JSON"),
        (["--schema", '{"type": "objct"}'], 2, "the output is not a valid JSON Schema"),
        (["--schema", "nonesuch.json"], 66, "no such file"),
        (["--schema", "name", "-x"], 2, "--schema and -x exclude each other"),
        (["-o", "response-schema", "{"], 2, "'response-schema' cannot be '{': it must be a JSON"),
        (["-o", "extras", "[1]"], 2, "'extras' cannot be [1]"),
    ],
)
def test_nothing_is_sent_with_a_wrong_schema(flags: list[str], status: int, words: str) -> None:
    outcome = invoke(*flags, "hi")
    assert outcome.status == status
    assert words in outcome.error
    assert invoke("list", "--json").json == []


def test_controls_that_are_tables_are_given_as_json(claude: FakeAnthropic) -> None:
    model = "anthropic/claude-sonnet-5-5"
    schema = json.dumps({**_SCHEMA, "additionalProperties": False})
    extras = '{"anthropic": {"metadata": {"user_id": "u1"}}}'
    outcome = invoke("-m", model, "-o", "response-schema", schema, "-o", "extras", extras, "hi")
    assert outcome.status == 0, outcome
    body = claude.requests[-1].json
    assert body["output_config"]["format"]["schema"]["required"] == ["name", "born"]
    assert body["metadata"] == {"user_id": "u1"}


def test_extras_that_no_provider_would_get_are_refused(claude: FakeAnthropic) -> None:
    outcome = invoke("-m", "anthropic/claude-sonnet-5-5", "-o", "extras", '{"metadata": {}}', "hi")
    assert (outcome.status, claude.requests) == (2, [])
    assert "there is no provider 'metadata'" in outcome.error
    assert invoke("list", "--json").json == []


def test_in_a_dialogue_every_answer_follows_it(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of(f"{{ text = '''{_ADA}''' }}"))
    _, output, errors, _ = hold("who?", "and?", model=model, schema="name, born int")
    assert output == '{"name": "Ada", "born": 1815}\n' * 2
    model = write_script(tmp_path, script_of("{ text = 'no' }"))
    _, output, errors, _ = hold("who?", model=model, schema="name")
    assert output == ""
    assert "the output was not valid in" in errors
