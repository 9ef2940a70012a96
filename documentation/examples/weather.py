from vibe_llms import Session


async def advise(session: Session, model: str = "anthropic/claude-sonnet-5-5") -> str:
    """Ask a model what to wear."""

    def temperature(city: str) -> int:
        """The temperature in a city, in degrees Celsius."""
        return {"Oslo": -4}.get(city, 20)

    conversation = await session.begin(model, invokers=[temperature], save=False)
    turn = await conversation.converse("What shall I wear in Oslo?")
    return turn.text
