import readline  # noqa: F401  (arrow keys edit the line)
import sys

from vibe_llms import VibeLlmsError
from vibe_llms.base.exceptions import ConversationNotFound
from vibe_llms.synchronous import Conversation, Session, open_session

MODEL = "anthropic/claude-sonnet-5-5"


def open_chat(session: Session, name: str) -> Conversation:
    try:
        conversation = session.resume(name)
        print(f"{name}: {len(conversation.canisters)} messages so far")
        return conversation
    except ConversationNotFound:
        return session.begin(MODEL, name=name)


def answer(conversation: Conversation, prompt: str) -> None:
    try:
        for text in conversation.stream(prompt).text():
            print(text, end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped; what you see is kept]", end="")
    except VibeLlmsError as error:
        print(f"[{error}]", end="")
    print()


def main(name: str) -> None:
    with open_session() as session:
        conversation = open_chat(session, name)
        while True:
            try:
                prompt = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if prompt in ("/quit", "/exit"):
                return
            if prompt:
                answer(conversation, prompt)


main(sys.argv[1] if len(sys.argv) > 1 else "chat")
