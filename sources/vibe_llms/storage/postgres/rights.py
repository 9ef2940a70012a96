"""Rights that programs need on the tables, and checks of their role.

The migrations grant them to the role `vibe_llms`. These checks find a right that was revoked, or
that a restored backup did not grant, before a request fails halfway.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from vibe_llms.storage.postgres.pipelines import Statement

_ALL = "select, insert, update, delete"
#: Rights granted on each table and sequence.
RIGHTS = {
    "table": {
        **dict.fromkeys(
            (
                *("budgets", "contents", "continuations", "conversations", "files", "imports"),
                "logins",
                *("memory_entries", "memory_scopes", "memory_snapshots", "memory_tickets"),
                *("memory_vectors", "memory_workers", "pieces", "rates", "reservations"),
                *("run_approvals", "run_calls", "run_events", "run_questions", "run_recipes"),
                *("run_requests", "run_steering", "runs", "spenders", "users"),
            ),
            _ALL,
        ),
        **dict.fromkeys(("content_uses", "messages"), "select, insert, delete"),
        **dict.fromkeys(("memory_stats", "migrations"), "select"),
    },
    "sequence": dict.fromkeys(("memory_changes", "strands"), "usage"),
}
#: Functions that run with the rights of the owner of the tables.
FUNCTIONS = (
    *("access_secret", "claim_run", "count_runs", "enter_limit", "find_login"),
    *(
        "find_old_runs",
        "find_user",
        "pause_limit",
        "read_orders",
        "renew_leases",
        "require_lease",
        "search_messages",
    ),
    *("settle_limit", "survey_displaced", "survey_keys", "survey_logins", "survey_old_runs"),
    *("survey_spenders", "survey_users"),
)
#: Rights that a role lacks, and the statements that grant them. Newer tables are unknown here.
_MISSING = """
with needed as (
    select * from unnest(%(kinds)s::text[], %(names)s::text[], %(rights)s::text[])
        as given (kind, name, privilege)
), who as (
    select coalesce(nullif(%(role)s, '')::name, current_user) as role
)
select n.privilege || ' on vibe.' || n.name,
    format('grant %%s on %%s vibe.%%I to vibe_llms', n.privilege, n.kind, n.name)
from who, needed n
join pg_class c on c.relname = n.name and c.relnamespace = 'vibe'::regnamespace
where case n.kind
    when 'sequence' then not has_sequence_privilege(who.role, c.oid, n.privilege)
    else not has_table_privilege(who.role, c.oid, n.privilege) end
union all
select 'execute on ' || p.oid::regprocedure,
    format('grant execute on function %%s to vibe_llms', p.oid::regprocedure)
from who, pg_proc p
where p.pronamespace = 'vibe'::regnamespace and p.proname = any(%(functions)s)
    and not has_function_privilege(who.role, p.oid, 'execute')
union all
select 'usage on schema vibe', 'grant usage on schema vibe to vibe_llms' from who
where not has_schema_privilege(who.role, 'vibe', 'usage')
"""
_MEMBERSHIP = """
select 'vibe_llms to ' || %(role)s::text, format('grant vibe_llms to %%I', %(role)s::text)
where not pg_has_role(%(role)s::name, 'vibe_llms', 'usage')
"""
_WRITE = "insert into vibe.spenders (owner) values (%s)"


def survey_membership(role: str) -> Statement:
    """Return the query for a missing membership, which gives a role all rights."""
    return Statement("", _MEMBERSHIP, {"role": role})


def survey_missing(role: str = "") -> Statement:
    """Return the query for the rights that a role, by default the connection's, lacks."""
    return Statement("", _MISSING, {**_VALUES, "role": role})


def probe() -> Statement:
    """Return an insert for a user that cannot exist. The caller must roll it back."""
    # A random name prevents two probes from waiting for each other.
    user = f"?{os.urandom(8).hex()}"
    return Statement(user, _WRITE, (user,))


def describe_missing(role: str, missing: Sequence[str]) -> str:
    """Return the problem of a role that lacks rights."""
    first, more = missing[0], len(missing) - 1
    rest = f" and {more} more" if more else ""
    return f"the role {role!r} has no right to {first}{rest}"


def _needed() -> Iterator[tuple[str, str, str]]:
    for kind, granted in RIGHTS.items():
        for name, rights in granted.items():
            for right in rights.split(", "):
                yield kind, name, right


_kinds, _names, _rights = (list(column) for column in zip(*_needed(), strict=True))
_VALUES = {"kinds": _kinds, "names": _names, "rights": _rights, "functions": [*FUNCTIONS]}
