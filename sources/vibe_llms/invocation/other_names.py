"""Names of our tools in other systems, by which models, conversations, and rules may mean them.

A name here is weaker than every name and alias of an offered tool. It never collides with a tool of
the user's, and it never reaches a tool that is not offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import InvocationCanister


class OtherNames(Struct, frozen=True):
    """Names of a tool in other systems, and our arguments by their names there.

    An argument in `[]` is a list here and a single value there.
    """

    names: tuple[str, ...] = ()
    arguments: Mapping[str, str] = {}

    def translate(
        self, invocation: InvocationCanister, properties: Mapping[str, Any]
    ) -> InvocationCanister:
        """Return a call with our names of its arguments; `properties` are those of the schema.

        An argument keeps its name if it is ours, or if ours is given too.
        """
        given = invocation.parsed
        if not self.arguments or given is None:
            return invocation
        arguments = dict(given)
        for name, value in given.items():
            ours, single, _ = self.arguments.get(name, name).partition("[]")
            if name not in properties and ours not in arguments:
                del arguments[name]
                arguments[ours] = [value] if single else value
        if arguments.keys() == given.keys():
            return invocation
        text = msgspec.json.encode(arguments).decode()
        return msgspec.structs.replace(invocation, arguments=text, native=None)


#: By the name of the tool in the rows that come with the library. The names and arguments are those
#: of agents for DIAL, such as its "general purpose agent", and of the functions of mem0.
OTHER_NAMES: Mapping[str, OtherNames] = {
    "documents/list_documents": OtherNames(("list_documents",)),
    "documents/search_document": OtherNames(
        ("search_document", "rag_search_tool"), {"file_url": "source"}
    ),
    "documents/read_document": OtherNames(
        ("read_document", "file_content_extraction_tool", "file_content_extraction"),
        {"file_url": "source"},
    ),
    "images/generate_image": OtherNames(("generate_image", "image_generation_tool")),
    "memory/store_memory": OtherNames(("store_memory",)),
    "memory/search_memories": OtherNames(
        ("search_memories", "search_memory", "search_long_term_memory")
    ),
    "memory/delete_memories": OtherNames(
        ("delete_memories", "delete_memory", "delete_all_memories", "delete_long_term_memory"),
        {"memory_id": "ids[]"},
    ),
    "python/execute_code": OtherNames(("execute_code", "python_code_interpreter_tool")),
}
_BY_NAME = {name: tool for tool, one in OTHER_NAMES.items() for name in one.names}


def find_tool(name: str) -> str:
    """Return our name of a tool of another system, in the rows of the library, or this name."""
    return _BY_NAME.get(name, name)
