-- least: 8
-- The epoch becomes part of a key. Writes as the worker of a run lock its row FOR KEY SHARE, for
-- which only a new epoch has to wait. Everything else about a run may change at the same time.
create unique index runs_by_epoch on vibe.runs (owner, identity, epoch);

-- As before, but it skips a run while its worker is writing.
create or replace function vibe.claim_run(of_user text, seconds double precision, known text[])
returns table (owner text, run text)
language sql security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    with found as materialized (
        select one.owner, one.identity from vibe.runs one
        where one.status in ('queued', 'running') and vibe.is_claimable(one, of_user, known)
        order by one.created limit 1
        for update skip locked
    )
    update vibe.runs one
    set status = 'running', epoch = one.epoch + 1, updated = clock_timestamp(),
        until = clock_timestamp() + make_interval(secs => seconds)
    from found where one.owner = found.owner and one.identity = found.identity
    returning one.owner, one.identity
$$;

-- As before, but it never waits for a row, because other leases must not expire in the meantime. A
-- locked run is not lost; the next renewal extends it.
create or replace function vibe.renew_leases(
    owners text[], names text[], epochs integer[], seconds double precision
)
returns table (place bigint)
language sql security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    with held as materialized (
        select given.place, one.owner, one.identity, one.epoch
        from unnest(owners, names, epochs) with ordinality given (owner, run, epoch, place)
        join vibe.runs one on one.owner = given.owner and one.identity = given.run
            and one.epoch = given.epoch and one.status = 'running'
    ),
    free as materialized (
        select one.owner, one.identity
        from held join vibe.runs one on one.owner = held.owner and one.identity = held.identity
            and one.epoch = held.epoch and one.status = 'running'
        for no key update of one skip locked
    ),
    renewed as (
        update vibe.runs one set until = clock_timestamp() + make_interval(secs => seconds)
        from free where one.owner = free.owner and one.identity = free.identity
    )
    select generate_series(1, cardinality(owners)::bigint) except select held.place from held
$$;

-- Objects in a caller's temporary schema must not replace those that the functions use.
do $$
declare
    called regprocedure;
begin
    for called in
        select oid from pg_proc where pronamespace = 'vibe'::regnamespace and prosecdef
    loop
        execute format('alter function %s set search_path = pg_catalog, vibe, pg_temp', called);
    end loop;
end
$$;
