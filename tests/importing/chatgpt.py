"""Exports of ChatGPT, written by hand after its structure."""

from __future__ import annotations

from typing import Any

TIME = 1_756_000_000.5
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)


def text(*parts: Any) -> dict[str, Any]:
    """Contents of text, or of text and files."""
    kind = "text" if all(isinstance(part, str) for part in parts) else "multimodal_text"
    return {"content_type": kind, "parts": list(parts)}


def node(
    identity: str, parent: str | None, role: str, content: dict[str, Any], **others: Any
) -> dict[str, Any]:
    """A node; its time is in its id, such as `n3`. `name` is the tool's."""
    metadata = others.pop("metadata", {})
    author = {"role": role, "name": others.pop("name", None), "metadata": {}}
    return {
        "id": identity,
        "parent": parent,
        "children": [],
        "message": {
            "id": identity,
            "author": author,
            "create_time": TIME + float(identity.strip("abcdefghijklmnopqrstuvwxyz-") or 0),
            "content": content,
            "status": "finished_successfully",
            "weight": 1.0,
            "recipient": "all",
            "metadata": metadata,
            **others,
        },
    }


def conversation(*nodes: dict[str, Any], current: str = "", **others: Any) -> dict[str, Any]:
    """A conversation of these nodes below an empty root, with `children`."""
    root: dict[str, Any] = {
        "id": "client-created-root",
        "message": None,
        "parent": None,
        "children": [],
    }
    mapping = {one["id"]: one for one in (root, *nodes)}
    for one in nodes:
        if one.get("parent") in mapping:
            mapping[one["parent"]]["children"].append(one["id"])
    return {
        "title": "Harbor",
        "create_time": TIME,
        "update_time": TIME + 100,
        "mapping": mapping,
        "current_node": current or nodes[-1]["id"],
        "conversation_id": "g1",
        "id": "g1",
        "default_model_slug": "gpt-5",
        "is_archived": False,
        **others,
    }


def talk() -> dict[str, Any]:
    """Hidden context, a question, and an answer with a model."""
    context = {
        "content_type": "user_editable_context",
        "user_profile": "SECRET",
        "user_instructions": "SECRET",
    }
    hidden = {"is_visually_hidden_from_conversation": True, "is_user_system_message": True}
    return conversation(
        node("s0", "client-created-root", "system", text(""), metadata=hidden),
        node("n1", "s0", "user", context, metadata=hidden),
        node("n2", "n1", "user", text("When is high tide?")),
        node("s3", "n2", "system", text("Be careful."), metadata=hidden),
        node("n4", "s3", "assistant", text("At noon."), metadata={"model_slug": "gpt-5-1"}),
    )


def talk_with_everything() -> dict[str, Any]:
    """Every kind of contents, calls without ids, files, and marks of citations."""
    mark = "\ue200cite\ue202turn0search0\ue201"
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-Pic"}
    audio = {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://file_voice"}
    bare = {"content_type": "image_asset_pointer", "asset_pointer": "file_bare#1"}
    gone = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_gone"}
    attached = [
        {"id": "file-Pic", "name": "sky.png", "mimeType": "image/png", "size": 1},
        {"id": "file-Doc", "name": "notes.txt", "mimeType": "text/plain", "size": 1},
    ]
    voice = {
        "content_type": "real_time_user_audio_video_asset_pointer",
        "audio_asset_pointer": audio,
        "frames_asset_pointers": [],
    }
    spoken = {"content_type": "audio_transcription", "text": "Spoken words.", "direction": "in"}
    thoughts = {
        "content_type": "thoughts",
        "thoughts": [{"summary": "Plan", "content": "Think."}],
    }
    references = [
        {
            "matched_text": mark,
            "type": "grouped_webpages",
            "alt": "([tides](https://t.example))",
            "items": [{"title": "Tides", "url": "https://t.example", "snippet": "Noon."}],
        }
    ]
    return conversation(
        node(
            "n1",
            "client-created-root",
            "user",
            text("Look", image, bare, gone),
            metadata={"attachments": attached},
        ),
        node("n2", "n1", "user", {"content_type": "multimodal_text", "parts": [voice, spoken]}),
        node("n3", "n2", "assistant", thoughts),
        node(
            "n4", "n3", "assistant", {"content_type": "reasoning_recap", "content": "Thought 5 s"}
        ),
        node(
            "n5",
            "n4",
            "assistant",
            {"content_type": "code", "language": "unknown", "text": "print(1)"},
            recipient="python",
        ),
        # The result is older than the call.
        node(
            "n0",
            "n5",
            "tool",
            {"content_type": "execution_output", "text": "1"},
            name="python",
        ),
        node("n6", "n0", "assistant", text('{"q": "tides"}'), recipient="web.run"),
        node("n7", "n6", "assistant", text('{"q": "moon"}'), recipient="web.search"),
        node(
            "n8",
            "n7",
            "tool",
            {"content_type": "tether_browsing_display", "result": "Moon pages", "summary": ""},
            name="web.search",
        ),
        node(
            "n9",
            "n8",
            "tool",
            {"content_type": "tether_quote", "url": "https://t.example", "text": "Noon."},
            name="web.run",
        ),
        node(
            "n10", "n9", "tool", {"content_type": "system_error", "text": "Late."}, name="web.run"
        ),
        node("n11", "n10", "tool", {"content_type": "novelty", "x": [1]}, name="canvas"),
        node(
            "n12",
            "n11",
            "assistant",
            text(f"At noon {mark}. More \ue200navlist\ue201 【12†L1-L3】"),
            metadata={
                "model_slug": "o9",
                "content_references": references,
                "finish_details": {"type": "max_tokens"},
            },
        ),
    )


def files() -> dict[str, object]:
    """The files that `talk_with_everything` names, as different months export them."""
    return {
        "dalle-generations/file-Pic-sky.png": PIXEL,
        "file-Picture.png": b"another one",
        "file_voice.dat": b"ID3\x04" + bytes(100),
        "file_bare.dat": PIXEL + b"\0",
        "xyz.dat": b"Buy a boat.",
        "conversation_asset_file_names.json": {"xyz.dat": "file-Doc"},
        "chat.html": b"<html>",
        "user.json": {"id": "u"},
        "shared_conversations.json": [{"id": "x", "conversation_id": "g1", "title": "T"}],
        "export_manifest.json": {"files": []},
    }
