import asyncio
from math import hypot
from pathlib import Path

from vibe_llms import ImageContent, Invoker, TextualContent, open_session

SKY = Path("sky.png").read_bytes()


def draw_square(size: int = 1) -> list[TextualContent | ImageContent]:
    """Draw a square."""
    return [TextualContent(f"A square of size {size}."), ImageContent(SKY, "image/png")]


def length(x: float, y: float) -> float:
    return hypot(x, y)


async def main() -> None:
    measure = Invoker.from_function(length, name="measure", description="Length of a vector.")
    print(measure.arguments_schema)
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        turn = await conversation.converse(
            "Draw square, then measure 3 4.", invokers=[draw_square, measure]
        )
        print(turn.text)


asyncio.run(main())
