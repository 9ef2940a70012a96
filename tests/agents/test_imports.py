"""Templates of llm and roles of aichat as agents: what is kept, what is refused, and where."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llm import cli as llm_cli

from vibe_llms.agents.aichat_roles import divide_examples, read_role
from vibe_llms.agents.definitions import access_agent
from vibe_llms.agents.drafts import find_model
from vibe_llms.agents.imports import (
    AgentImportReport,
    ImportedAgent,
    check_row,
    import_agents,
    survey_sources,
)
from vibe_llms.agents.llm_templates import read_template
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import RequestError
from vibe_llms.opening import open_session
from vibe_llms.synchronous import open_session as open_synchronous

# llm has no types.
_apply_template: Any = llm_cli._apply_template
_parse_yaml_template: Any = llm_cli._parse_yaml_template
Import = Callable[..., AgentImportReport]
CONFIGURATION = load_configuration(Places.under(Path("/nonexistent")), environment={})


@pytest.fixture
def bring(home: Path) -> Import:
    """Import files and folders into a configuration in `home`."""

    def work(*paths: Path, **options: Any) -> AgentImportReport:
        configuration = load_configuration(Places.under(home))
        return import_agents(paths, configuration, locate=lambda _: None, **options)

    return work


def only(report: AgentImportReport) -> ImportedAgent:
    (one,) = report.agents
    return one


def template(text: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    draft = read_template("t", text.encode(), CONFIGURATION)
    return draft.row, draft.remarks


def role(text: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    draft = read_role("r", text.encode(), CONFIGURATION)
    return draft.row, draft.remarks


# Templates of llm.

FUNCTIONS = (
    "functions is Python code, which an import never runs; save it as a file, read it, and give "
    "it with --functions FILE"
)

# Without ${input}, which llm does not find: https://github.com/simonw/llm/pull/1532
PIECES = st.sampled_from(("$a", "${b}", "$input", "$$", "$input,", " ", "x", "é", "\n", "'", "#"))
TEXTS = st.none() | st.lists(PIECES, min_size=1, max_size=6).map("".join)
#: Not empty, because llm leaves out a prompt that its variables make empty.
VALUES = st.text(alphabet="$a{}é\n", min_size=1, max_size=5)


@given(
    prompt=TEXTS,
    system=TEXTS.map(lambda text: text and text.replace("$input", "-").replace("${input}", "-")),
    defaults=st.dictionaries(st.sampled_from(("a", "b")), VALUES | st.integers() | st.booleans()),
    message=VALUES,
    values=st.tuples(VALUES, VALUES),
)
def test_an_imported_template_sends_what_llm_sends(
    prompt: str | None,
    system: str | None,
    defaults: dict[str, Any],
    message: str,
    values: tuple[str, str],
) -> None:
    text = yaml.safe_dump({"prompt": prompt, "system": system, "defaults": defaults})
    theirs = _parse_yaml_template("t", text)
    row, _ = template(text)
    agent = check_row(CONFIGURATION, "t", row, lambda _: None)
    variables: dict[str, str] = dict(zip(("a", "b"), values, strict=True))
    given_ = {name: variables.get(name, "$v") for name in agent.needed}
    expected = _apply_template(theirs, message, {**given_}, None)
    fill = agent.produce_template(given_)
    assert (fill(message) if fill else message, agent.instruct(given_)) == (
        expected[0],
        expected[1] or "",
    )


def test_all_fields_of_a_template_are_kept_or_named() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    row, remarks = template(
        yaml.safe_dump(
            {
                "model": "gpt-4o",
                "system": "Be $tone.",
                "prompt": "Look: $input",
                "defaults": {"tone": "kind", "unused": 1},
                "options": {"temperature": 0.5, "max_tokens": 9, "stop": "END", "logit_bias": {}},
                "schema_object": schema,
                "extract": True,
                "extract_last": True,
                "attachments": ["a.png"],
                "attachment_types": [{"type": "image/png", "value": "b"}],
                "fragments": ["f.txt"],
                "system_fragments": ["s.txt"],
                "tools": ["llm_time"],
                "functions": "import os\nos._exit(1)",
            }
        )
    )
    assert row == {
        "model": "openai/gpt-4o",
        "supervisor-template": "Be $tone.",
        "prompt": "Look: $input",
        "defaults": {"tone": "kind"},
        "controls": {
            "temperature": 0.5,
            "output-tokens": 9,
            "stop": ["END"],
            "response-schema": schema,
        },
    }
    assert remarks == (
        "the default of 'unused' is left out: no text uses it",
        "option 'logit_bias' has no counterpart",
        FUNCTIONS,
        "tools of llm are left out: llm_time; name tools of yours in the keys tools or ensembles",
        "attachments are given with each message: -a a.png -a b",
        "fragments are given with each message: -f f.txt",
        "system_fragments are left out: s.txt; add their text to the system prompt",
        "extract is an option of a command: -x",
        "extract_last is an option of a command: --xl",
    )


@pytest.mark.parametrize(
    ("text", "row", "words"),
    [
        ("'Summarize: $input'", {"prompt": "Summarize: $input"}, ""),
        ("Summarize.", {"prompt": "Summarize.\n$input"}, ""),
        ("system: Hello $$world", {"supervisor": "Hello $world"}, ""),
        ("system: About $input", {"prompt": "About $input"}, "system contains $input"),
        (
            "{system: About $input, prompt: Go.}",
            {"prompt": "About $input\n\nGo."},
            "system contains $input",
        ),
        ("{options: {temperature: hot}}", {}, "option 'temperature' is left out"),
        ("{options: {temperature: null, extras: {}}}", {}, "'extras' has no counterpart"),
        ("schema_object: {default: null}", {}, "schema_object contains null"),
        (
            "schema_object: {a: {default: 2020-01-01, 1: [2]}}",
            {"controls": {"response-schema": {"a": {"default": "2020-01-01", "1": [2]}}}},
            "",
        ),
        ("{}", {}, ""),
    ],
)
def test_odd_templates(text: str, row: Any, words: str) -> None:
    found, remarks = template(text)
    assert found == row
    assert words in " ".join(remarks)
    assert bool(remarks) == bool(words)


def test_dollar_signs_that_llm_refuses_are_doubled() -> None:
    # https://github.com/simonw/llm/issues/432: a shell script ends llm with a traceback.
    script = 'infile="$1"\nseconds="${3:3"}\ncost $$5 for $name\n'
    text = yaml.safe_dump({"prompt": script})
    with pytest.raises(ValueError, match="Invalid placeholder"):
        _parse_yaml_template("t", text).evaluate("", {"name": "me"})
    row, remarks = template(text)
    assert remarks == ("dollar signs that begin no variable are now written $$",)
    agent = check_row(CONFIGURATION, "t", row, lambda _: None)
    fill = agent.produce_template({"name": "me"})
    assert fill is not None
    assert fill("x") == 'infile="$1"\nseconds="${3:3"}\ncost $5 for me\n\nx'


# Roles of aichat.


def test_the_role_of_the_guide_is_read() -> None:
    # https://github.com/sigoden/aichat/issues/1189: a blank line ends the front matter.
    row, remarks = role(
        "---\nmodel: openai:gpt-4o\ntemperature: 0\ntop_p: 0\n\n---\nYour task is to take the text "
        "provided.\r\n"
    )
    assert row == {
        "model": "openai/gpt-4o",
        "supervisor": "Your task is to take the text provided.",
        "controls": {"temperature": 0.0, "top-p": 0.0},
    }
    assert remarks == ()


def test_examples_are_kept() -> None:
    # https://github.com/sigoden/aichat/issues/559, with output that looks like front matter.
    row, remarks = role(
        "Apply the tags.\n### INPUT:\nlorem $x\n### OUTPUT:\n--- source text\n+++ tagged text\n"
        "### INPUT:\nb\n### OUTPUT:\nc"
    )
    assert row == {
        "supervisor": "Apply the tags.",
        "examples": [
            {"input": "lorem $x", "output": "--- source text\n+++ tagged text"},
            {"input": "b", "output": "c"},
        ],
    }
    assert remarks == ()


@pytest.mark.parametrize(
    ("prompt", "divided"),
    [
        # The three cases of aichat's own tests.
        (
            "System message\n### INPUT:\nInput 1\n### OUTPUT:\nOutput 1",
            ("System message", [("Input 1", "Output 1")]),
        ),
        ("### INPUT:\nInput 1\n### OUTPUT:\nOutput 1", ("", [("Input 1", "Output 1")])),
        ("System message\n### INPUT:\nInput 1", ("System message\n### INPUT:\nInput 1", [])),
        ("S\n### OUTPUT:\nO", ("S\n### OUTPUT:\nO", [])),
        ("S ### INPUT: a ### OUTPUT:", ("S ### INPUT: a ### OUTPUT:", [])),
        ("S ### INPUT: a ### INPUT: b ### OUTPUT: c", ("S", [("a ### INPUT: b", "c")])),
        ("", ("", [])),
    ],
)
def test_examples_are_divided_as_in_aichat(prompt: str, divided: Any) -> None:
    assert divide_examples(prompt) == divided


@pytest.mark.parametrize(
    ("text", "row", "words"),
    [
        ("Say __INPUT__s for $5", {"prompt": "Say ${input}s for $$5"}, ""),
        ("__INPUT__\n### INPUT:\na", {"prompt": "$input\n### INPUT:\na"}, ""),
        ("To __ARG1__: __INPUT__", {"prompt": "To $arg1: $input"}, ""),
        ("To __ARG1__ for $5", {"supervisor-template": "To $arg1 for $$5"}, ""),
        ("Costs $5", {"supervisor": "Costs $5"}, ""),
        ("---\n---\nHi", {"supervisor": "Hi"}, ""),
        ("---\ntemperature: 0.5\n---", {"controls": {"temperature": 0.5}}, ""),
        ("Above\n---\nbelow\n---\nend", {"supervisor": "Above\n---\nbelow\n---\nend"}, ""),
        ("---\nuse_tools: fs,web\n---\nHi", {"supervisor": "Hi"}, "use_tools 'fs,web'"),
        ("---\nuse_tools: null\n---\nHi", {"supervisor": "Hi"}, ""),
        ("---\ntemperature: true\n---\nHi", {"supervisor": "Hi"}, "'temperature' is left out"),
        ("---\nauthor: me\n---\nHi", {"supervisor": "Hi"}, "'author' is left out"),
        ("---\nmodel: mine:llama3:8b\n---\nHi", {"supervisor": "Hi"}, "model 'mine:llama3:8b'"),
        ("For {{__os__}} {{x}}", {"supervisor": "For {{__os__}} {{x}}"}, "{{__os__}}: not filled"),
    ],
)
def test_odd_roles(text: str, row: Any, words: str) -> None:
    found, remarks = role(text)
    assert found == row
    assert words in " ".join(remarks)
    assert bool(remarks) == bool(words)


def test_the_old_file_of_roles_is_read(bring: Import, tmp_path: Path, home: Path) -> None:
    # https://github.com/sigoden/aichat/issues/804 replaced it by a folder.
    (tmp_path / "roles.yaml").write_text(
        "- name: shell\n  prompt: Be a shell.\n  temperature: 0.1\n"
        "- name: convert:json:yaml\n  prompt: Convert __ARG1__ to __ARG2__.\n  model_id: claude:x\n"
        "- name: broken\n- 5\n- name: shell\n  prompt: Another.\n"
    )
    report = bring(tmp_path / "roles.yaml")
    found = [(one.name, one.status) for one in report.agents]
    assert found == [
        ("shell", "imported"),
        ("convert", "imported"),
        ("entry 3", "refused"),
        ("entry 4", "refused"),
        ("shell", "refused"),
    ]
    agent = access_agent(load_configuration(Places.under(home)), "convert")
    assert agent.model == "anthropic/x"
    assert agent.instruct({"arg1": "a", "arg2": "b"}) == "Convert a to b."


# Models.


@pytest.mark.parametrize(
    ("program", "name", "address"),
    [
        ("llm", "gpt-4o", "openai/gpt-4o"),
        ("llm", "o3-mini", "openai/o3-mini"),
        ("llm", "gpt-oss:20b", ""),
        ("llm", "anthropic/claude-3-5-haiku-latest", "anthropic/claude-3-5-haiku-latest"),
        ("llm", "claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("llm", "gemini/gemini-2.0-flash", "gemini/gemini-2.0-flash"),
        ("llm", "openrouter/meta/llama-3", "openrouter/meta/llama-3"),
        # A model of Ollama, and no model of a provider.
        ("llm", "mistral:latest", ""),
        ("llm", "4o", ""),
        ("llm", "nobody/x", ""),
        ("aichat", "openai:gpt-4o", "openai/gpt-4o"),
        ("aichat", "claude:claude-3-haiku", "anthropic/claude-3-haiku"),
        ("aichat", "ollama:llama3.2:latest", "ollama/llama3.2:latest"),
        ("aichat", "vertexai:gemini-pro", ""),
        ("aichat", "openai:", ""),
    ],
)
def test_models_are_mapped_only_if_that_is_certain(program: Any, name: str, address: str) -> None:
    assert find_model(CONFIGURATION, program, name) == address


# Files.


def nested(depth: int) -> str:
    return f"schema_object: {'{a: ' * depth}1{'}' * depth}"


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    + ["prompt: *a29"]
)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.yaml", b"prompt: [", "it is not valid YAML"),
        ("a.yaml", b"- 1\n- 2", "neither a mapping nor a text"),
        ("a.yaml", b"promt: x", "unknown field `promt`"),
        ("a.yaml", b"prompt: 5", "Expected `str"),
        ("a.yaml", b"defaults: [a]", "it is not a template of llm"),
        ("a.yaml", b"prompt: !!python/object/apply:os.system ['exit 1']", "it is not valid YAML"),
        ("a.yaml", b"functions: !!python/name:os.system", "it is not valid YAML"),
        ("a.yaml", BOMB.encode(), "its YAML has aliases"),
        ("a.yaml", nested(400).encode(), "cannot be written to the configuration file"),
        ("a.yaml", nested(20000).encode(), "it is not valid YAML"),
        ("a.yaml", b"\x89PNG\r\n\x00\x01", "it is not text"),
        ("a.yaml", b"prompt: \xff", "it is not UTF-8 text"),
        ("a.yaml", b'prompt: "\\ud800 $input"', "it "),
        ("a.yaml", b"", "it is empty"),
        ("a.yaml", b"# only this\n", "it is empty"),
        ("a.yaml", b"prompt: " + b"x" * 10_000_000, "larger than"),
        ("a.md", b"x" * 10_000_000, "larger than"),
        ("a.md", b" \n", "it is empty"),
        ("a.md", b"\xff\xfe", "it is not UTF-8 text"),
        ("a.md", b"---\nmodel: [\n---\nHi", "it is not valid YAML"),
        ("a.md", b"---\nYou are kind.\n---\nHi", "its front matter"),
        ("a.md", b"---\na: &a [1]\nb: *a\n---\nHi", "its YAML has aliases"),
        ("roles.yaml", b"name: x", "it is not a list of roles"),
        ("a b.yaml", b"prompt: x", "the name of an agent has up to 64 letters"),
        ("%code%.md", b"Code.", "rename it in aichat"),
        ("a.txt", b"Hi", "it is neither a template of llm (.yaml) nor a role of aichat (.md)"),
    ],
)
def test_bad_files_are_refused_and_the_others_are_imported(
    bring: Import, tmp_path: Path, home: Path, name: str, data: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.yaml").write_text("system: Be good.")
    report = bring(tmp_path / name, tmp_path / "good.yaml")
    bad, good = report.agents
    assert (bad.status, bad.row, good.status) == ("refused", {}, "imported")
    assert reason in bad.reasons[0]
    assert bad.source == str(tmp_path / name)
    assert access_agent(load_configuration(Places.under(home)), "good").supervisor == "Be good."
    assert "[agents.a]" not in (home / "config.toml").read_text()


def test_missing_files_pipes_and_odd_folders(bring: Import, tmp_path: Path) -> None:
    assert "No such file" in only(bring(tmp_path / "no.yaml")).reasons[0]
    os.mkfifo(tmp_path / "pipe.md")
    assert "pipe" in only(bring(tmp_path / "pipe.md")).reasons[0]
    odd = tmp_path / os.fsdecode(b"\xff.md")
    odd.write_text("x")
    assert only(bring(odd)).source == f"{tmp_path}/\ufffd.md"
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"empty has no templates of llm"):
        bring(tmp_path / "empty")


def test_two_of_one_name_are_not_both_imported(bring: Import, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("system: One.")
    (tmp_path / "x.md").write_text("Two.")
    first, second = bring(tmp_path).agents
    assert (first.status, second.status) == ("imported", "refused")
    assert second.reasons == (f"{first.source} has the same name; rename one of them",)
    assert bring(tmp_path / "x.md", tmp_path / "x.md").counts["unchanged"] == 1


def test_the_same_import_changes_nothing(bring: Import, tmp_path: Path, home: Path) -> None:
    file = home / "config.toml"
    home.mkdir()
    file.write_text("# mine\n[agents.old] # and mine\nsupervisor = 'x'\n")
    for name, text in (("a.yaml", "{system: A, tools: [t]}"), ("b.md", "B\n### INPUT: 1\n\nb")):
        (tmp_path / name).write_text(text)
    assert [one.status for one in bring(tmp_path, dry_run=True).agents] == ["partly", "imported"]
    assert "agents.a" not in file.read_text()
    bring(tmp_path)
    text = file.read_text()
    assert text.startswith("# mine\n[agents.old] # and mine\nsupervisor = 'x'\n")
    assert 'supervisor = """\nB\n### INPUT: 1\n\nb"""' in text
    assert "# tools of llm are left out: t; name tools of yours" in text
    report = bring(tmp_path)
    assert report.counts == {"imported": 0, "partly": 0, "unchanged": 2, "refused": 0}
    assert file.read_text() == text
    (tmp_path / "a.yaml").write_text("system: Another.")
    assert "--force replaces it" in bring(tmp_path).agents[0].reasons[0]
    assert file.read_text() == text
    assert bring(tmp_path, force=True).counts["imported"] == 1
    assert access_agent(load_configuration(Places.under(home)), "a").supervisor == "Another."
    (tmp_path / "general.md").write_text("Mine.")
    assert only(bring(tmp_path / "general.md")).status == "refused"


def test_remarks_cannot_break_the_file(bring: Import, tmp_path: Path, home: Path) -> None:
    evil = "t\x07]\n[agents.evil]\u2028x = 1"
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"system": evil, "tools": [evil]}))
    assert only(bring(tmp_path)).status == "partly"
    configuration = load_configuration(Places.under(home))
    assert access_agent(configuration, "a").supervisor == evil
    assert "evil" not in configuration.tree["agents"]


def test_folders_of_the_programs_are_found(tmp_path: Path) -> None:
    for one in ("llm/templates", "aichat/roles"):
        (tmp_path / one).mkdir(parents=True)
    (tmp_path / "aichat" / "roles.yaml").write_text("[]")
    environment = {"LLM_USER_PATH": str(tmp_path / "llm"), "XDG_CONFIG_HOME": str(tmp_path)}
    places = [tmp_path / one for one in ("llm/templates", "aichat/roles", "aichat/roles.yaml")]
    assert survey_sources(environment) == places
    environment = {"LLM_USER_PATH": str(tmp_path / "x"), "AICHAT_CONFIG_DIR": str(tmp_path / "x")}
    assert survey_sources(environment) == []
    environment["AICHAT_ROLES_DIR"] = str(tmp_path / "aichat" / "roles")
    assert survey_sources(environment) == [tmp_path / "aichat" / "roles"]


def test_the_folder_of_a_program_stands_for_what_is_in_it(bring: Import, tmp_path: Path) -> None:
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "a.md").write_text("A")
    (tmp_path / "roles.yaml").write_text("[{name: b, prompt: B}]")
    (tmp_path / "config.yaml").write_text("model: x")
    assert [one.name for one in bring(tmp_path).agents] == ["b", "a"]


def test_a_row_that_was_added_meanwhile_is_not_replaced(bring: Import, home: Path) -> None:
    # The configuration was read before another process wrote the row.
    stale = load_configuration(Places.under(home))
    source = home.parent / "a.md"
    source.write_text("A")
    bring(source)
    source.write_text("B")
    text = (home / "config.toml").read_text()
    report = import_agents(source, stale, locate=lambda _: None)
    assert only(report).status == "refused"
    assert (home / "config.toml").read_text() == text


async def test_a_session_imports_agents(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nmodel: scripted:demo\n---\nA")
    async with open_session() as session:
        report = await session.import_agents(tmp_path / "a.md")
        assert (report.counts["imported"], report.file) == (1, str(home / "config.toml"))
    async with open_session() as session:
        assert session.access_agent("a").model == "scripted/demo"


def test_a_synchronous_session_imports_agents(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("A")
    with open_synchronous() as session:
        assert session.import_agents(str(tmp_path), dry_run=True).dry_run
    assert not (home / "config.toml").exists()
