from vibe_llms.synchronous import open_session

with open_session() as session:
    conversation = session.begin("anthropic/claude-sonnet-5-5", memory=True)
    print(conversation.converse("What is my cat called?").text)
