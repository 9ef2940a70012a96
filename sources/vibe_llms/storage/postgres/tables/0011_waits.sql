-- least: 8
-- The epoch becomes a part of a key: who writes as the worker of a run locks its row FOR KEY SHARE,
-- which only a new epoch has to wait for. Everything else about a run may change at the same time.
create unique index runs_by_epoch on vibe.runs (owner, identity, epoch);

-- As before, but for who waits for whom: it skips a run while its worker is writing.
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

-- As before, but it waits for no row: the others must not lose their leases because of one. A run
-- that is locked is not lost by that; the next renewal holds it.
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

-- Nothing in the temporary schema of a caller may take the place of what they call.
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
