"""The version of this library, which the build reads, and names that other programs see."""

__version__ = "0.1.0"

#: In the `_meta` of a call, what tells an MCP server that calls belong to one conversation.
CONVERSATION_KEY = "vibe-llms/conversation"
#: Lets the interpreter run code without a cage, with `none`, as its row says.
CAGE_VARIABLE = "VIBE_LLMS_CAGE"
