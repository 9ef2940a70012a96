import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Literal

from vibe_llms import Session, SupervisorCanister, UserCanister, VibeLlmsError, open_session

MODEL = "anthropic/claude-haiku-5-5"
JUDGE = "anthropic/claude-sonnet-5-5"
RUBRIC = "You judge answers of a support desk: correct, short, friendly. 1 is bad, 5 is perfect."


@dataclass
class Verdict:
    reason: str
    score: Literal[1, 2, 3, 4, 5]


async def judge(session: Session, identity: str, instructions: str) -> Verdict:
    """Answer the last message of a stored conversation again, with other instructions."""
    stored = (await session.resume(identity)).canisters
    last = max(place for place, one in enumerate(stored) if isinstance(one, UserCanister))
    said = [one for one in stored[: last + 1] if not isinstance(one, SupervisorCanister)]
    trial = await session.begin(MODEL, supervisor=instructions, history=said, save=False)
    answer = (await trial.converse()).text
    panel = await session.begin(JUDGE, supervisor=RUBRIC, save=False)
    asked = stored[last]
    assert isinstance(asked, UserCanister)
    shown = ["The message:", *asked.contents, f"The answer:\n{answer}"]
    verdict = await panel.converse(shown, output=Verdict)
    return verdict.output


async def main(tag: str, files: list[Path]) -> None:
    async with open_session() as session:
        stored = await session.survey_conversations(tag=tag)
        if not stored:
            sys.exit(f"no conversation has the tag {tag}; add it: vibe-llms tag ID {tag}")
        print(f"| {'conversation':30} |", *(f"{file.stem:>8} |" for file in files))
        print(f"| {'-' * 30} |", *("-------: |" for _ in files))
        scores: list[list[int]] = []
        for one in stored:
            verdicts = await asyncio.gather(
                *(judge(session, one.identity, file.read_text("utf-8")) for file in files)
            )
            scores.append([verdict.score for verdict in verdicts])
            print(f"| {one.title[:30]:30} |", *(f"{score:8} |" for score in scores[-1]))
        means = [mean(column) for column in zip(*scores, strict=True)]
        print(f"| {'mean':30} |", *(f"{one:8.2f} |" for one in means))


if len(sys.argv) < 3:
    sys.exit("usage: python evaluate_prompts.py TAG FILE...")
try:
    asyncio.run(main(sys.argv[1], [Path(name) for name in sys.argv[2:]]))
except (OSError, VibeLlmsError) as error:
    sys.exit(str(error))
