import readline  # noqa: F401  (arrow keys edit the line)
import sys
from pathlib import Path

from vibe_llms import DocumentCanister, VibeLlmsError
from vibe_llms.synchronous import open_session

MODEL = "anthropic/claude-sonnet-5-5"
RULES = """\
You teach Norwegian. Ask one short question at a time, and correct mistakes with one sentence.
If the notes say what this learner finds hard, practice that first."""
LEARNERS = Path.home() / "learners"


def teach(learner: str) -> None:
    # Each learner has a home folder of their own: memory and conversations.
    with open_session(home=LEARNERS / learner) as session:
        lesson = session.begin(MODEL, memory=True, supervisor=RULES)
        while said := input("> ").strip():
            try:
                turn = lesson.converse(said)
            except VibeLlmsError as error:
                print(f"[{error}]")
                continue
            if any(isinstance(one, DocumentCanister) for one in turn.canisters):
                print("(remembers something)")
            print(turn.text)
        # What was said is remembered in the background.
        session.background.wait()


if not sys.argv[1:] or not sys.argv[1].isalnum():
    sys.exit("usage: python tutor.py NAME")
try:
    teach(sys.argv[1])
except (EOFError, KeyboardInterrupt):
    print()
