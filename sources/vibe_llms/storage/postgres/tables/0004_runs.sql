-- least: 4
-- State of runs, without content. Functions look here for work of all users. The owner of the table
-- reads all rows, and others only those of one user.
create table vibe.runs (
    owner text not null,
    identity text collate "C" not null,
    conversation text not null,
    status text not null,
    epoch integer not null,
    -- End of the lease.
    until timestamptz not null,
    cancelling boolean not null default false,
    -- Tools that a worker must know.
    invokers text[] not null,
    -- True if the events were deleted, some days after the end.
    purged boolean not null default false,
    created timestamptz not null default clock_timestamp(),
    updated timestamptz not null default clock_timestamp(),
    primary key (owner, identity)
) with (fillfactor = 70);
create unique index runs_active on vibe.runs (owner, conversation)
    where status in ('queued', 'running', 'waiting');
create index runs_claimable on vibe.runs (created) where status in ('queued', 'running');
create index runs_newest on vibe.runs (owner, created, identity);
create index runs_old on vibe.runs (updated)
    where status in ('completed', 'failed', 'cancelled') and not purged;
alter table vibe.runs enable row level security;
create policy owner on vibe.runs
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.runs to vibe_llms;

-- Data for rebuilding runs, and the reasons why they ended.
create table vibe.run_recipes (
    owner text not null,
    run text collate "C" not null,
    recipe bytea not null,
    prompt bytea not null,
    opening bytea not null,
    details bytea,
    state bytea not null,
    origin bytea not null,
    ending bytea,
    primary key (owner, run)
);

create table vibe.run_events (
    owner text not null,
    run text collate "C" not null,
    cursor bigint not null,
    data bytea not null,
    primary key (owner, run, cursor)
);

-- Calls that began, each with its epoch.
create table vibe.run_calls (
    owner text not null,
    run text collate "C" not null,
    invocation text collate "C" not null,
    epoch integer not null,
    primary key (owner, run, invocation)
);

create table vibe.run_approvals (
    owner text not null,
    run text collate "C" not null,
    invocation text collate "C" not null,
    data bytea not null,
    primary key (owner, run, invocation)
);

create table vibe.run_questions (
    owner text not null,
    run text collate "C" not null,
    identity text collate "C" not null,
    data bytea not null,
    primary key (owner, run, identity)
);

-- Keys of repeatable requests.
create table vibe.run_requests (
    owner text not null,
    key bytea not null,
    digest bytea not null,
    run text collate "C" not null,
    created timestamptz not null default clock_timestamp(),
    primary key (owner, key)
);
create index run_requests_by_run on vibe.run_requests (owner, run);
create index run_requests_by_age on vibe.run_requests (owner, created);

-- Users who have reserved or spent anything. Their row serializes changes of their budgets. Like
-- vibe.runs, this table has no content, and its owner reads all rows.
create table vibe.spenders (
    owner text not null primary key,
    spent boolean not null default false
);
alter table vibe.spenders enable row level security;
create policy owner on vibe.spenders
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.spenders to vibe_llms;

create table vibe.budgets (
    owner text not null,
    agent text not null,
    period text not null,
    start timestamptz not null,
    tokens bigint not null,
    money bigint not null,
    primary key (owner, agent, period, start)
);

create table vibe.reservations (
    owner text not null,
    identity text collate "C" not null,
    agent text not null,
    period text not null,
    start timestamptz not null,
    tokens bigint not null,
    money bigint not null,
    output integer not null,
    sent boolean not null default false,
    until timestamptz not null,
    primary key (owner, identity, agent)
);

do $$
declare
    name text;
begin
    foreach name in array array[
        'run_recipes', 'run_events', 'run_calls', 'run_approvals', 'run_questions',
        'run_requests', 'budgets', 'reservations'
    ] loop
        execute format('alter table vibe.%I enable row level security', name);
        execute format('alter table vibe.%I force row level security', name);
        execute format(
            'create policy owner on vibe.%I using (owner = vibe.current_user_name()) '
            'with check (owner = vibe.current_user_name())',
            name
        );
        execute format('grant select, insert, update, delete on vibe.%I to vibe_llms', name);
    end loop;
end
$$;

-- Returns true if a worker may take a run now.
create function vibe.is_claimable(run vibe.runs, of_user text, known text[]) returns boolean
language sql stable
return run.status in ('queued', 'running')
    and (run.status = 'queued' or run.until < statement_timestamp())
    and (of_user is null or run.owner = of_user)
    and run.invokers <@ known;

-- Gives a run to a worker for some seconds, in a new epoch.
create function vibe.claim_run(of_user text, seconds double precision, known text[])
returns table (owner text, run text)
language sql security definer set search_path = pg_catalog, vibe
as $$
    with found as materialized (
        select one.owner, one.identity from vibe.runs one
        where one.status in ('queued', 'running') and vibe.is_claimable(one, of_user, known)
        order by one.created limit 1
        for no key update skip locked
    )
    update vibe.runs one
    set status = 'running', epoch = one.epoch + 1, updated = clock_timestamp(),
        until = clock_timestamp() + make_interval(secs => seconds)
    from found where one.owner = found.owner and one.identity = found.identity
    returning one.owner, one.identity
$$;

-- Extends leases by some seconds, and returns the positions of those that were lost.
create function vibe.renew_leases(
    owners text[], names text[], epochs integer[], seconds double precision
)
returns table (place bigint)
language sql security definer set search_path = pg_catalog, vibe
as $$
    with held as materialized (
        select given.place, one.owner, one.identity
        from unnest(owners, names, epochs) with ordinality given (owner, run, epoch, place)
        join vibe.runs one on one.owner = given.owner and one.identity = given.run
            and one.epoch = given.epoch and one.status = 'running'
        order by given.place
        for no key update of one
    ),
    renewed as (
        update vibe.runs one set until = clock_timestamp() + make_interval(secs => seconds)
        from held where one.owner = held.owner and one.identity = held.identity
    )
    select generate_series(1, cardinality(owners)::bigint) except select held.place from held
$$;

-- Returns the runs of a worker that should be cancelled, and true if a run can be claimed.
create function vibe.read_orders(of_user text, known text[], owners text[], names text[])
returns table (cancel text[], claimable boolean)
language sql stable security definer set search_path = pg_catalog, vibe
as $$
    select
        array(
            select one.identity
            from unnest(owners, names) given (owner, run)
            join vibe.runs one on one.owner = given.owner and one.identity = given.run
            where one.cancelling
        ),
        exists (
            select from vibe.runs one
            where one.status in ('queued', 'running') and vibe.is_claimable(one, of_user, known)
        )
$$;

create function vibe.count_runs() returns table (status text, number bigint)
language sql stable security definer set search_path = pg_catalog, vibe
as $$ select one.status, count(*) from vibe.runs one group by one.status $$;

-- Returns users with events of runs that ended some time ago.
create function vibe.find_old_runs(days double precision, most integer) returns table (owner text)
language sql stable security definer set search_path = pg_catalog, vibe
as $$
    select distinct old.owner from (
        select one.owner from vibe.runs one
        where one.status in ('completed', 'failed', 'cancelled') and not one.purged
            and one.updated < now() - make_interval(secs => days * 86400)
        order by one.updated limit most
    ) old
$$;

create function vibe.survey_spenders() returns table (owner text)
language sql stable security definer set search_path = pg_catalog, vibe
as $$ select one.owner from vibe.spenders one where one.spent order by one.owner $$;

do $$
declare
    name text;
begin
    foreach name in array array[
        'claim_run(text, double precision, text[])',
        'renew_leases(text[], text[], integer[], double precision)',
        'read_orders(text, text[], text[], text[])',
        'count_runs()', 'find_old_runs(double precision, integer)', 'survey_spenders()'
    ] loop
        execute format('revoke all on function vibe.%s from public', name);
        execute format('grant execute on function vibe.%s to vibe_llms', name);
    end loop;
end
$$;
