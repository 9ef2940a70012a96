-- least: 8
-- Short forms of a recipe and a prompt for lists, and of a prompt and an opening some days after
-- the end. Runs that older code created have none.
alter table vibe.run_recipes add column short_recipe bytea;
alter table vibe.run_recipes add column short_prompt bytea;
alter table vibe.run_recipes add column short_opening bytea;

-- For deletions together with a conversation.
create index runs_by_conversation on vibe.runs (owner, conversation);
create index continuations_by_conversation on vibe.continuations (owner, conversation);

-- As before, but only for runs that have not ended, because the number of ended runs grows forever.
create or replace function vibe.count_runs() returns table (status text, number bigint)
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select one.status, count(*) from vibe.runs one
    where one.status in ('queued', 'running', 'waiting') group by one.status
$$;

-- Returns the oldest runs that ended some time ago and were not purged, by user.
create function vibe.survey_old_runs(days double precision, most integer)
returns table (owner text, runs text[])
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select old.owner, array_agg(old.identity) from (
        select one.owner, one.identity from vibe.runs one
        where one.status in ('completed', 'failed', 'cancelled') and not one.purged
            and one.updated < now() - make_interval(secs => days * 86400)
        order by one.updated limit most
    ) old group by old.owner
$$;
revoke all on function vibe.survey_old_runs(double precision, integer) from public;
grant execute on function vibe.survey_old_runs(double precision, integer) to vibe_llms;
