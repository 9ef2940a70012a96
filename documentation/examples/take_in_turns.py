import asyncio
import tempfile
from pathlib import Path

from vibe_llms import AssistantCanister, UserCanister
from vibe_llms.conversations.asking import ModelAsker
from vibe_llms.memory import Ingestion, Memory, Scope
from vibe_llms.testing import Script, ScriptedReply, scripted_model

ANSWERS = (
    '{"facts": [{"statement": "The user lives in Lisbon", "importance": 0.9}]}',
    '{"facts": [{"statement": "The user moved to Porto"}, {"statement": "The user is rich"}]}',
    '{"decisions": [{"number": 1, "event": "DELETE", "by": 2}, {"number": 2, "event": "ADD"}]}',
)


async def main() -> None:
    # You can use any model in place of this script.
    model = scripted_model(Script(tuple(ScriptedReply.from_chunks(one) for one in ANSWERS)))
    memory = Memory(Path(tempfile.mkdtemp()))
    ingestion = Ingestion(memory, ModelAsker(model), scope=Scope.of_user("ada"))
    for words in ("Hi! I live in Lisbon. Is it far to Faro?", "I moved to Porto. My PIN is 4711."):
        said, answered = UserCanister.from_text(words), AssistantCanister.from_text("I see.")
        report = await ingestion.take_in([said, answered], conversation="abcdefgh2345")
        print("\n".join(report.describe()))
    await memory.close()


asyncio.run(main())
