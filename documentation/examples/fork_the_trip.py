from vibe_llms.synchronous import open_session

with open_session() as session:
    fork = session.resume("trip").fork(name="another trip")
    print(fork.converse("Hello!").text)
