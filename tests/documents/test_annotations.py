"""A PDF is read with what people filled in, remarked, marked and linked."""

from __future__ import annotations

import pytest

from tests.documents.making import assemble_pdf, make_pdf
from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.documents.reading import DocumentReader

_WIDGET = "/Subtype /Widget /Rect [50 600 90 620]"
#: The first line of a page of `make_pdf`, and its second one.
_FIRST = "/Rect [40 745 300 765] /QuadPoints [40 765 300 765 40 745 300 745]"
_SECOND = "/Rect [40 732 300 744]"


def draw_box(name: str, value: str, state: str) -> str:
    """A check box, or one of a group, that stands for a value when it is checked."""
    look = f"/AP << /N << /{value} << >> /Off << >> >> >>"
    return f"{_WIDGET} /FT /Btn /T ({name}) /V /{state} /AS /{state} {look}"


async def test_fields_of_a_form_are_read_with_their_values(reader: DocumentReader) -> None:
    annotations = [
        f"{_WIDGET} /FT /Tx /T (name) /TU (Full name) /V (Ada Moen)",
        f"{_WIDGET} /FT /Tx /T (street)",
        f"{_WIDGET} /FT /Tx /T (pin) /Ff 8192 /V (1234)",
        f"{_WIDGET} /FT /Ch /T (country) /Ff 131072 /V (no) /Opt [[(no) (Norway)] [(se) (Sweden)]]",
        draw_box("agreed", "Yes", "Yes"),
        draw_box("mail", "Yes", "Off"),
        draw_box("size", "Large", "Large"),
        f"{_WIDGET} /FT /Sig /T (signature)",
        f"{_WIDGET} /FT /Btn /Ff 65536 /T (send)",
        f"{_WIDGET} /FT /Tx /T (secret) /V (9) /F 2",
    ]
    text = await reader.read(make_pdf(["Form"], annotations=annotations), "a.pdf")
    assert text.text == (
        "Form\n\nForm fields:\n- Full name: Ada Moen\n- pin: (a password)\n- country: Norway\n"
        "- [x] agreed\n- [ ] mail\n- [x] size (Large)\n- signature: (not signed)\n"
        "- secret (hidden): 9\n- (1 empty)"
    )


async def test_a_group_of_boxes_is_the_one_that_is_checked(reader: DocumentReader) -> None:
    look = "/AP << /N << /{0} << >> /Off << >> >> >>"
    boxes = [
        f"{_WIDGET} /FT /Btn /Ff 49152 /T (size) /V /L /AS /{state} {look.format(value)}"
        for value, state in (("S", "Off"), ("L", "L"))
    ]
    text = await reader.read(make_pdf(["Form"], annotations=boxes), "a.pdf")
    assert text.text.endswith("Form fields:\n- size: L")


async def test_comments_and_marked_text_follow_the_page(reader: DocumentReader) -> None:
    about = "/T (Ada) /M (D:20260131102030+01'00')"
    annotations = [
        f"/Subtype /Text {_SECOND} {about} /Contents (Is this so?)",
        f"/Subtype /Highlight {_FIRST} /T (Bob) /Contents (Nice)",
        f"/Subtype /StrikeOut {_FIRST}",
        f"/Subtype /FreeText {_SECOND} /Contents (Draft \\(v2\\))",
        f"/Subtype /Popup {_SECOND} /Contents (Is this so?)",
        f"/Subtype /Square {_SECOND}",
    ]
    text = await reader.read(make_pdf(["One\nTwo", "Next"], annotations=annotations), "a.pdf")
    assert text.text == (
        "One\nTwo\n\nComment (author: Ada, time: 2026-01-31T10:20:30): Is this so?\n"
        'Highlighted "One" (author: Bob): Nice\nStruck out "One"\nText box: Draft (v2)\n\nNext'
    )
    assert text.place_at(text.text.index("Bob")).page == 1


async def test_links_are_read_unless_the_page_shows_them(reader: DocumentReader) -> None:
    annotations = [
        f"/Subtype /Link {_FIRST} /A << /S /URI /URI (https://a.example/x) >>",
        f"/Subtype /Link {_FIRST} /A << /S /URI /URI (https://b.example) >>",
        f"/Subtype /Link {_FIRST} /A << /S /URI /URI (javascript:alert\\(1\\)) >>",
        f"/Subtype /Link {_FIRST} /A << /S /Launch /F (/bin/sh) >>",
    ]
    data = make_pdf(["The page\nhttps://b.example"], annotations=annotations)
    assert (await reader.read(data, "a.pdf")).text == (
        "The page\nhttps://b.example\n\nLinks:\n- The page: https://a.example/x"
    )


async def test_a_form_for_adobes_programs_and_attached_files_are_told(
    reader: DocumentReader,
) -> None:
    xfa = make_pdf(
        ["Please wait"], catalog="/AcroForm << /XFA (x) /Fields [] >> /NeedsRendering true"
    )
    (notice,) = (await reader.read(xfa, "a.pdf")).notices
    assert "XFA" in notice
    names = "/Names << /EmbeddedFiles << /Names [(n) << /Type /Filespec /F (plan.xlsx) >>] >> >>"
    text = await reader.read(make_pdf(["Letter"], catalog=names), "a.pdf")
    assert text.notices == ("files in it are not read: plan.xlsx",)


async def test_a_damaged_pdf_says_that_it_is_damaged(reader: DocumentReader) -> None:
    plain = make_pdf(["words"])
    empty = assemble_pdf(
        [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"],
        "/Root 1 0 R",
    )
    for data in (b"%PDF-1.4 nonsense", plain[: len(plain) // 3], empty):
        with pytest.raises(DocumentUnreadable) as raised:
            await reader.read(data, "a.pdf")
        assert raised.value.damaged
    with pytest.raises(DocumentUnreadable) as raised:
        await reader.read(make_pdf([""]), "a.pdf")
    assert not raised.value.damaged
