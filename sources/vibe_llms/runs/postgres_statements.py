"""SQL statements of `PostgresRunStore`."""

# ruff: noqa: S608  (all of it is made of constants)
from __future__ import annotations

_RUNS = """
from vibe.runs run join vibe.run_recipes how on how.owner = run.owner and how.run = run.identity
"""
_STATUS = """
select run.owner, run.identity, run.conversation, run.status, run.epoch, run.cancelling,
    run.created, run.updated, how.ending
"""
RECORDS = f"""
{_STATUS}, how.recipe, how.prompt, how.state, how.opening, how.details, how.origin {_RUNS}
"""
#: Lists leave out the full input, which may be large.
LISTED = f"""
{_STATUS}, coalesce(how.short_recipe, how.recipe), coalesce(how.short_prompt, how.prompt), how.state
{_RUNS}
"""
REFRESH = f"{_STATUS} {_RUNS} where run.owner = %s and run.identity = %s"
LOCK = "select owner, identity, status, epoch from vibe.runs run"
#: The rest of the transaction runs as the user whose run was claimed.
CLAIM = """
select set_config('vibe.user', owner, true), set_config('vibe.run', run, true)
from vibe.claim_run(%(user)s, %(seconds)s, %(known)s::text[])
"""
CLAIMED = f"""
{RECORDS}
where run.owner = vibe.current_user_name() and run.identity = current_setting('vibe.run', true)
"""
#: SQL condition that a worker still has a run.
HAS_LEASE = "owner = %(owner)s and identity = %(run)s and epoch = %(epoch)s and status = 'running'"
CHECK = f"select 1 from vibe.runs where {HAS_LEASE}"
#: Blocks only a new epoch, because the epoch is part of a key.
SHARE_LEASE = f"select from vibe.runs where {HAS_LEASE} for key share"
#: Blocks decisions and answers too.
LOCK_LEASE = f"select cancelling from vibe.runs where {HAS_LEASE} for no key update"
FENCE = f"select vibe.require_lease(exists ({SHARE_LEASE}), %(refusal)s)"
RECORD_STATE = f"""
with held as materialized ({SHARE_LEASE})
update vibe.run_recipes set state = %(state)s
from held where owner = %(owner)s and run = %(run)s
"""
RECORD_ENDING = f"""
with held as materialized ({SHARE_LEASE})
update vibe.run_recipes set ending = %(ending)s
from held where owner = %(owner)s and run = %(run)s
"""
GIVE_BACK = f"""
update vibe.runs set status = %(status)s, until = clock_timestamp(), updated = clock_timestamp()
where {HAS_LEASE}
"""
RELEASE = f"""
update vibe.runs set status = 'queued', updated = clock_timestamp(),
    until = clock_timestamp() + make_interval(secs => %(seconds)s)
where {HAS_LEASE}
"""
#: Returns the epoch in which the call started before, or 0.
BEGIN_CALL = f"""
with held as materialized ({SHARE_LEASE}),
earlier as (
    select epoch from vibe.run_calls, held
    where owner = %(owner)s and run = %(run)s and invocation = %(invocation)s
),
begun as (
    insert into vibe.run_calls (owner, run, invocation, epoch)
    select %(owner)s, %(run)s, %(invocation)s, %(epoch)s from held
    where not exists (select from earlier)
)
select coalesce((table earlier), 0) from held
"""
BEGIN_AGAIN = f"""
with held as materialized ({SHARE_LEASE}),
begun as (
    insert into vibe.run_calls (owner, run, invocation, epoch)
    select %(owner)s, %(run)s, %(invocation)s, %(epoch)s from held
    on conflict (owner, run, invocation) do update set epoch = excluded.epoch
)
select 0 from held
"""
APPEND = f"""
with held as materialized ({SHARE_LEASE}),
moved as (
    update vibe.runs set conversation = %(conversation)s, updated = clock_timestamp()
    where {HAS_LEASE} and %(conversation)s::text <> '' and exists (select from held)
),
added as (
    insert into vibe.run_events (owner, run, cursor, data)
    select %(owner)s, %(run)s, one.cursor, one.data
    from unnest(%(cursors)s::bigint[], %(data)s::bytea[]) one (cursor, data)
    where exists (select from held)
)
select count(*) from held
"""
#: Serializes the creation of runs per user; the first key of the lock is "runs" in ASCII.
LOCK_RUNS = f"select pg_advisory_xact_lock({0x72756E73}, hashtext(%(owner)s))"
#: Request keys are known for a day.
REQUEST = """
select digest, run from vibe.run_requests
where owner = %(owner)s and key = %(key)s and created > clock_timestamp() - interval '1 day'
"""
#: Returns how many runs of the user were queued or running, and if this one was created.
CREATE = f"""
with others as materialized (
    select count(*) as number from vibe.runs
    where owner = %(owner)s and status in ('queued', 'running')
),
made as (
    insert into vibe.runs (owner, identity, conversation, status, epoch, until, invokers)
    select %(owner)s, %(run)s, %(conversation)s, %(status)s, %(epoch)s,
        clock_timestamp() + make_interval(secs => %(seconds)s), %(invokers)s::text[]
    from others
    where (%(most)s::integer is null or number < %(most)s)
        and (%(key)s::bytea is null or not exists ({REQUEST}))
    on conflict (owner, conversation) where status in ('queued', 'running', 'waiting') do nothing
    returning owner
),
described as (
    insert into vibe.run_recipes (owner, run, recipe, prompt, opening, details, state, origin,
        short_recipe, short_prompt, short_opening)
    select owner, %(run)s, %(recipe)s, %(prompt)s, %(opening)s, %(details)s, %(state)s, %(origin)s,
        %(short_recipe)s, %(short_prompt)s, %(short_opening)s
    from made
)
select number, exists (select from made) from others
"""
KEEP_REQUEST = """
insert into vibe.run_requests (owner, key, digest, run)
select owner, %(key)s, %(digest)s, identity
from vibe.runs where owner = %(owner)s and identity = %(run)s
on conflict (owner, key) do update
set digest = excluded.digest, run = excluded.run, created = excluded.created
"""
REMOVE = """
with gone as materialized (
    select identity from vibe.runs
    where owner = %(owner)s and (identity = %(run)s or conversation = %(conversation)s)
    for update
),
events as (delete from vibe.run_events where owner = %(owner)s and run in (table gone)),
calls as (delete from vibe.run_calls where owner = %(owner)s and run in (table gone)),
approvals as (delete from vibe.run_approvals where owner = %(owner)s and run in (table gone)),
questions as (delete from vibe.run_questions where owner = %(owner)s and run in (table gone)),
requests as (delete from vibe.run_requests where owner = %(owner)s and run in (table gone)),
steering as (delete from vibe.run_steering where owner = %(owner)s and run in (table gone)),
recipes as (delete from vibe.run_recipes where owner = %(owner)s and run in (table gone))
delete from vibe.runs where owner = %(owner)s and identity in (table gone)
"""
#: Keeps `origin`, because a stored response is returned with its request.
PURGE = """
with old as materialized (
    select identity from vibe.runs
    where owner = %(owner)s and identity = any(%(runs)s) and not purged
    for no key update skip locked
),
purged as (
    update vibe.runs set purged = true where owner = %(owner)s and identity in (table old)
),
calls as (delete from vibe.run_calls where owner = %(owner)s and run in (table old)),
steering as (delete from vibe.run_steering where owner = %(owner)s and run in (table old)),
shortened as (
    update vibe.run_recipes
    set prompt = short_prompt, opening = short_opening
    where owner = %(owner)s and run in (table old) and short_prompt is not null
)
delete from vibe.run_events where owner = %(owner)s and run in (table old)
"""
PURGE_REQUESTS = """
delete from vibe.run_requests
where owner = %(owner)s and created < clock_timestamp() - interval '1 day'
"""
APPROVALS = "select data from vibe.run_approvals where owner = %s and run = %s"
CONVERSATION_APPROVALS = """
select a.data from vibe.run_approvals a
join vibe.runs r on r.owner = a.owner and r.identity = a.run
where r.owner = %s and r.conversation = %s
"""
QUESTIONS = "select data from vibe.run_questions where owner = %s and run = %s order by identity"
