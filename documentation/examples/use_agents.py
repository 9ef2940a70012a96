import asyncio

from vibe_llms import UserCanister, open_session

AGENTS = {
    "interpreter": {"model": "scripted/demo", "prompt": "Translate to $language: $input"},
}


async def main() -> None:
    async with open_session(configuration={"agents": AGENTS}) as session:
        print([agent.name for agent in session.survey_agents()])
        conversation = await session.begin(agent="interpreter", variables={"language": "French"})
        turn = await conversation.converse("Good morning")
        prompt = turn.canisters[0]
        assert isinstance(prompt, UserCanister)
        print(prompt.text)


asyncio.run(main())
