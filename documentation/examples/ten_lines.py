from vibe_llms.synchronous import open_session

with open_session() as session:
    conversation = session.begin("anthropic/claude-sonnet-5-5", name="sky")
    for text in conversation.stream("Why is the sky blue?").text():
        print(text, end="", flush=True)
    fork = conversation.fork(name="sky for children")
    fork.switch("ollama/qwen3:8b")
    print()
    print(fork.converse("Explain it to a child.").text)
