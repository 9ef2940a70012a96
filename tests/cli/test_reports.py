"""Reports of a turn: its images are named on stderr, and saved once each with --save."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Outcome, invoke, write_script
from tests.fakes.images import KEY, PNG, FakeImages
from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli.reports import find_images, save_image
from vibe_llms.messages.canisters import (
    AssistantCanister,
    ResultCanister,
    StopReason,
    Turn,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Location, Reference, TextualContent

NAME = f"{Reference.from_bytes(PNG).hash[:12]}.png"


@pytest.fixture
def painter(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeImages]:
    with FakeImages() as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("VIBE_LLMS_PROVIDERS__OPENAI__BASE_URL", f"{server.url}/v1")
        yield server


def ask(tmp_path: Path, *options: str) -> Outcome:
    call = "{ invocation = 'images/generate_image', arguments = { prompt = 'a cat' } }"
    model = write_script(
        tmp_path,
        f"[[replies]]\nparts = [ {call} ]\n[[replies]]\nparts = [ {{ text = 'Done.' }} ]\n",
    )
    return invoke("-m", model, "-T", "images", "--ta", *options, "Go.")


def test_the_file_in_the_archive_is_named(painter: FakeImages, tmp_path: Path) -> None:
    outcome = ask(tmp_path)
    (path,) = (
        Path(line.removeprefix("image: "))
        for line in outcome.errors.splitlines()
        if line.startswith("image: ")
    )
    assert path.read_bytes() == PNG
    assert outcome.output == "Done.\n"
    assert painter.refusals == []


@pytest.mark.parametrize("options", [(), ("-n",), ("-q",), ("--json",)])
def test_a_picture_is_saved_where_that_is_asked_for(
    painter: FakeImages, tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "deep" / "pictures"
    outcome = ask(tmp_path, "--save", str(folder), *options)
    assert (folder / NAME).read_bytes() == PNG
    assert (f"image: {folder / NAME}" in outcome.errors) == ("-q" not in options)
    if "--json" in options:
        assert json.loads(outcome.output)["text"] == "Done."
    # The same picture again is no failure, and no other file.
    assert ask(tmp_path, "--save", str(folder), *options).status == 0
    assert [path.name for path in folder.iterdir()] == [NAME]


def test_an_unsaved_image_is_reported(painter: FakeImages, tmp_path: Path) -> None:
    outcome = ask(tmp_path, "-n")
    assert "an image was not saved; to save images: --save FOLDER" in outcome.errors


def test_a_folder_that_cannot_be_written_to_is_one_clear_line(
    painter: FakeImages, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    outcome = ask(tmp_path, "--save", str(tmp_path / "file"))
    assert "cannot save the image" in outcome.error


def test_an_image_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(RequestError, match="is in the way"):
        save_image(tmp_path, PNG, "image/png")
    with pytest.raises(RequestError, match="cannot save the image"):
        save_image(Path("/proc/none"), PNG, "image/png")
    assert save_image(tmp_path, PNG, "").suffix == ".bin"


def test_pictures_of_tools_and_models_count_once_and_the_persons_not() -> None:
    one, other = ImageContent(PNG, "image/png"), ImageContent(b"x", "image/png")
    kept = ImageContent(Reference.from_bytes(PNG), "image/png")
    turn = Turn(
        canisters=(
            UserCanister((other,)),
            AssistantCanister((one, TextualContent("a"))),
            ResultCanister((kept, ImageContent(Location("https://x"))), invocation="1"),
        ),
        text="",
        output=None,
        usage=Usage(),
        stop_reason=StopReason.FINISHED,
    )
    assert list(find_images(turn)) == [one]
