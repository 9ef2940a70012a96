from vibe_llms import read_attachment
from vibe_llms.synchronous import open_session

with open_session() as session:
    conversation = session.begin("anthropic/claude-sonnet-5-5")
    turn = conversation.converse([read_attachment("sky.png"), "What is in this picture?"])
    print(turn.text)
