"""The server: conversations over HTTP for many users, in the dialects that clients speak already.

The handlers hold no state. `turns` serves one turn whatever the dialect; one module for each
dialect translates requests and replies.
"""
