from vibe_llms import MessageProgressEvent, TextChunk
from vibe_llms.synchronous import open_session

with open_session() as session:
    conversation = session.begin("scripted/demo")
    turn = conversation.converse("Hello!")
    print(turn.text)

    for event in conversation.stream("What about privacy?"):
        match event:
            case MessageProgressEvent(chunk=TextChunk(text)):
                print(text, end="")

    other = conversation.fork()
    print(len(other.canisters))
