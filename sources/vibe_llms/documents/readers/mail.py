"""Reader of mail: the headers, the body, and the names of attachments."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_binary_file, policy
from email.message import EmailMessage

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part
from vibe_llms.documents.readers.headings import split_headings
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.markup import draw_markdown, parse_html
from vibe_llms.documents.readers.texts import decode

_SHOWN = ("From", "To", "Cc", "Date", "Subject")


def read_mail(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield a message. Its body is the plain text if present, else its HTML as Markdown."""
    message = message_from_binary_file(source.file, policy=policy.default)
    if not isinstance(message, EmailMessage) or not message.keys():
        raise DocumentUnreadable("it is not a mail message: it has no headers")
    heads = [(name, " ".join(str(message.get(name, "")).split())) for name in _SHOWN]
    yield ReaderNotice(title=dict(heads)["Subject"])
    yield Part("\n".join(f"{name}: {text}" for name, text in heads if text))
    body = message.get_body(("plain", "html"))
    if body is not None:
        data = body.get_payload(decode=True)
        text = _decode(data, body.get_content_charset()) if isinstance(data, bytes) else ""
        if body.get_content_subtype() == "html":
            root = parse_html(text).body
            yield from split_headings(draw_markdown(root) if root is not None else "")
        else:
            yield Part(text)
    names = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    if names:
        yield Part("Attachments: " + ", ".join(" ".join(name.split()) for name in names))


def _decode(data: bytes, encoding: str | None) -> str:
    try:
        return data.decode(encoding or "utf-8").replace("\r\n", "\n")
    except (LookupError, UnicodeDecodeError):
        return decode(data)


register("mail", read_mail)
