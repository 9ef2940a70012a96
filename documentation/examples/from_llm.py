from pydantic import BaseModel

from vibe_llms import VibeLlmsError, read_attachment
from vibe_llms.synchronous import open_session


class Picture(BaseModel):
    subject: str
    colors: list[str]


with open_session() as session:
    conversation = session.begin("openai/gpt-5.5")
    sky = read_attachment("sky.png")
    try:
        picture = conversation.converse([sky, "What is in this picture?"], output=Picture).output
        print(picture.subject, *picture.colors)
        for chunk in conversation.stream("Write a line of verse about it.").text():
            print(chunk, end="", flush=True)
        print()
    except VibeLlmsError as error:
        print(f"[{error}]")
    # Everything is stored, and can be found.
    for found in session.search("verse"):
        print(found.conversation == conversation.identity, found.excerpt)
