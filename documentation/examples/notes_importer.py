from collections.abc import Iterator

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.interfaces import (
    ExportedRecord,
    ImporterConfiguration,
    Sample,
    register,
)
from vibe_llms.importing.messages import ExportedConversation, ExportedMessage
from vibe_llms.messages.contents import TextualContent


class NotesImporter:
    """Reads files whose lines begin with `title:`, `me:` or `bot:`."""

    def __init__(self, name: str, configuration: ImporterConfiguration) -> None:
        self.name = name

    def recognize(self, sample: Sample) -> bool:
        return sample.head.startswith(b"title:")

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        yield ExportedRecord(file, consumed=file.size)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        title, *lines = record.file.read().decode().splitlines()
        messages = []
        for number, line in enumerate(lines):
            who, _, text = line.partition(": ")
            messages.append(
                ExportedMessage(
                    id=str(number),
                    parent=str(number - 1) if number else "",
                    speaker="user" if who == "me" else "assistant",
                    parts=(TextualContent(text),),
                )
            )
        return ExportedConversation(
            id=record.file.name,
            title=title.removeprefix("title: "),
            messages=tuple(messages),
            fallback=record.file.changed,
        )


register("notes", NotesImporter)
