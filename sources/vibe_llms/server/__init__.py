"""The server: conversations over HTTP for many users, in established API dialects.

The handlers are stateless. `turns` serves a turn in any dialect; a few modules per dialect
translate requests and replies.
"""
