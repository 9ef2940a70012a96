from vibe_llms.synchronous import open_session

with open_session() as session:
    conversation = session.begin("scripted/demo")
    run = session.start(conversation, "Hello!")
    print(run.result().text)
