import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vibe_llms import Session, VibeLlmsError, open_session, read_document
from vibe_llms.base.exceptions import ConversationNotFound
from vibe_llms.runs import Run

MODEL = "anthropic/claude-sonnet-5-5"
PROMPT = "These files changed since yesterday. Write a digest in at most ten points."
KEPT = 30


def find_changed(folder: Path) -> list[Path]:
    since = (datetime.now(UTC) - timedelta(days=1)).timestamp()
    return sorted(one for one in folder.rglob("*.md") if one.stat().st_mtime > since)


async def begin_or_find(session: Session, name: str, folder: Path) -> Run:
    """Return the run of this night: an earlier start may have begun it."""
    try:
        conversation = await session.resume(name)
        for record in await session.survey_runs(conversation=conversation.identity):
            if record.status not in ("failed", "cancelled"):
                return await session.access_run(record.identity)
    except ConversationNotFound:
        conversation = await session.begin(MODEL, name=name, tags=["digest"])
    documents = [read_document(str(path)) for path in find_changed(folder)]
    if not documents:
        print("nothing has changed")
        sys.exit()
    return await session.start(conversation, [*documents, PROMPT])


async def main(folder: Path) -> str:
    async with open_session() as session:
        # Work also on runs that another process left when it was killed.
        session.access_runs().resume()
        run = await begin_or_find(session, f"digest {datetime.now(UTC):%Y-%m-%d}", folder)
        print(f"to look at it: vibe-llms runs show {run.identity}")
        digest = (await run.result()).text
        for old in (await session.survey_conversations(tag="digest"))[KEPT:]:
            await session.remove(old.identity)
    return digest


if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
    sys.exit("usage: python nightly_digest.py FOLDER TARGET")
try:
    Path(sys.argv[2]).write_text(asyncio.run(main(Path(sys.argv[1]))) + "\n", "utf-8")
except (OSError, VibeLlmsError) as error:
    sys.exit(f"{error}; start again to try once more")
