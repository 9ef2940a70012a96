import asyncio
from typing import Annotated, Literal

from pydantic import Field

from vibe_llms import (
    Event,
    InvocationContext,
    InvocationFailedEvent,
    InvocationProgressEvent,
    open_session,
)


async def forecast(
    city: Annotated[str, Field(description="the name of the city")],
    context: InvocationContext,
    unit: Literal["celsius", "fahrenheit"] = "celsius",
) -> dict[str, str]:
    """Tell the weather of tomorrow."""
    context.report_progress("asking the station", done=1, total=2)
    if city == "Atlantis":
        raise LookupError("there is no such city")
    return {"city": city, "sky": "clear", "unit": unit}


def show(event: Event) -> None:
    match event:
        case InvocationProgressEvent(text=text, done=done, total=total):
            print(f"{text} ({done} of {total})")
        case InvocationFailedEvent(result=result):
            print(result.text)


async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("scripted/demo", invokers=[forecast])
        print((await conversation.converse('Make a forecast for "Oslo".')).text)
        print((await conversation.converse('Make a forecast for "Atlantis".')).text)


asyncio.run(main())
