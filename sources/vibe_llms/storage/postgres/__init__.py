"""PostgreSQL backend for conversations, runs, budgets, and memory, shared by several servers.

Set `[archive] module = "vibe_llms.storage.postgres"` and `dsn = "..."` to use it.
"""

from vibe_llms.storage.backends import register
from vibe_llms.storage.postgres.backend import PostgresBackend

register("postgres", PostgresBackend)
