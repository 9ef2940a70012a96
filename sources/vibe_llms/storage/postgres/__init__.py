"""Conversations, runs, budgets and memory in PostgreSQL, for several servers.

`[archive] module = "vibe_llms.storage.postgres"` with `dsn = "..."` is all that changes.
"""

from vibe_llms.storage.backends import register
from vibe_llms.storage.postgres.backend import PostgresBackend

register("postgres", PostgresBackend)
