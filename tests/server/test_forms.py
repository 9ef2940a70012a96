"""Forms with a file: what browsers and clients send, and what is wrong with others."""

from __future__ import annotations

import pytest

from vibe_llms.server.failures import Rejected
from vibe_llms.server.forms import FormFile, read_form

HEADER = b"multipart/form-data; boundary=x"


def join(*lines: bytes) -> bytes:
    return b"\r\n".join(lines)


def test_a_form_has_its_fields_and_its_file() -> None:
    data = b"\r\n--y\r\n\x00\xff--x\r"
    body = join(
        *(b"--x", b'content-disposition: form-data; name="purpose"', b"", "é".encode()),
        *(b"--x", b'Content-Disposition: form-data; name="file"; filename="\xc3\xa9 \\"a\\".pdf"'),
        *(b"Content-Type: Application/PDF; a=b", b"", data, b"--x--", b"trailer"),
    )
    form = read_form(body, b'Multipart/form-data; boundary="x"')
    assert form.fields == {"purpose": "é"}
    assert form.file == FormFile(data, 'é "a".pdf', "application/pdf")


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (b"=?utf-8?B?5rWL6K+VLnR4dA==?=", "测试.txt"),
        (b"=?utf-8?B?A?=", "=?utf-8?B?A?="),
        (b"=?x?Q?a?=", "=?x?Q?a?="),
    ],
)
def test_names_from_dotnet_are_decoded(sent: bytes, name: str) -> None:
    """See https://github.com/openai/openai-dotnet/issues/72."""
    part = b'Content-Disposition: form-data; name="file"; filename="%b"' % sent
    assert read_form(join(b"--x", part, b"", b"a", b"--x--"), HEADER).file.name == name


PART = join(b"--x", b'Content-Disposition: form-data; name="file"; filename="a"', b"", b"a")


@pytest.mark.parametrize(
    ("header", "body", "status", "words"),
    [
        (b"", join(PART, b"--x--"), 415, "multipart/form-data"),
        (b"application/json", b"{}", 415, "multipart/form-data"),
        (b"multipart/form-data", join(PART, b"--x--"), 415, "boundary"),
        (HEADER, b"", 400, "valid form"),
        (HEADER, b"garbage", 400, "valid form"),
        (HEADER, PART, 400, "last boundary"),
        (HEADER, join(PART, b"--x", b'Content-Disposition: form-data; name="b'), 400, "valid form"),
        (HEADER, join(PART, PART, b"--x--"), 400, "one file"),
        (HEADER, join(PART.replace(b'"file"', b'"files"'), b"--x--"), 400, "no part file"),
        (HEADER, join(b"--x", b"", b"a", b"--x--"), 400, "no part file"),
        (HEADER, join(*[PART.replace(b'"file"', b'"b"')] * 101, b"--x--"), 400, "100 parts"),
    ],
)
def test_a_form_that_is_wrong_is_refused(
    header: bytes, body: bytes, status: int, words: str
) -> None:
    with pytest.raises(Rejected, match=words) as refused:
        read_form(body, header)
    assert refused.value.failure.status == status
