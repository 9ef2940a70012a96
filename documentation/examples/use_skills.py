import asyncio

from vibe_llms import ResultCanister, open_session
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

# A scripted model, which needs no key, reads the skill and then answers.
CALL = Part(invocation="skills/use_skill", arguments={"name": "weekly-report"})
SCRIPT = Script(
    (ScriptedReply(parts=(CALL,)), ScriptedReply(parts=(Part(text=("What went well?",)),)))
)


async def main() -> None:
    async with open_session() as session:
        for skill in (await session.survey_skills()).skills:
            print(skill.name, "is offered" if not skill.problem else skill.problem)
        conversation = await session.begin(scripted_model(SCRIPT), skills=["weekly-report"])
        turn = await conversation.converse("Write my report.")
        (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
        print(result.text.splitlines()[0])
        print(turn.text)


asyncio.run(main())
