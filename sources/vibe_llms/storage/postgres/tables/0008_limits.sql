-- least: 8
-- Requests of all servers to the provider of a row with limits. The tables have no users or
-- content, and are read and written only through functions.
create table vibe.limits (
    name text not null primary key,
    -- End of the wait that the provider has asked for.
    paused timestamptz not null default '-infinity'
);
create table vibe.limited_requests (
    name text not null,
    number bigint generated always as identity,
    sent timestamptz not null,
    tokens bigint not null,
    primary key (name, number)
);

-- Counts a request if it fits into the limits of a minute. Otherwise returns the seconds to wait,
-- and true if the provider has asked for the wait. Calls for a row are serialized.
create function vibe.enter_limit(
    row_name text, estimate bigint, most_requests bigint, most_tokens bigint
)
returns table (entered bigint, seconds double precision, asked boolean)
language plpgsql security definer set search_path = pg_catalog, vibe
as $$
declare
    moment timestamptz;
    free timestamptz;
    until timestamptz;
begin
    insert into vibe.limits as one (name) values (row_name)
        on conflict (name) do update set name = excluded.name
        returning one.paused into until;
    moment := clock_timestamp();
    if until > moment then
        return query select null::bigint, extract(epoch from until - moment)::float8, true;
        return;
    end if;
    delete from vibe.limited_requests one
        where one.name = row_name and one.sent <= moment - interval '1 minute';
    select max(recent.sent) into free from (
        select one.sent,
            row_number() over newest as requests,
            sum(one.tokens) over newest as tokens
        from vibe.limited_requests one where one.name = row_name
        window newest as (order by one.sent desc, one.number desc)
    ) recent
    where recent.requests >= most_requests
        or recent.tokens > most_tokens - least(estimate, most_tokens);
    if free is not null then
        return query select
            null::bigint, extract(epoch from free + interval '1 minute' - moment)::float8, false;
        return;
    end if;
    return query insert into vibe.limited_requests as one (name, sent, tokens)
        values (row_name, moment, estimate) returning one.number, 0::float8, false;
end
$$;

-- Replaces the estimate of a request by its actual use.
create function vibe.settle_limit(row_name text, entered bigint, used bigint) returns void
language sql security definer set search_path = pg_catalog, vibe
as $$
    update vibe.limited_requests one set tokens = used
    where one.name = row_name and one.number = entered
$$;

-- Prevents all servers from sending requests for some seconds.
create function vibe.pause_limit(row_name text, seconds double precision) returns void
language sql security definer set search_path = pg_catalog, vibe
as $$
    insert into vibe.limits as one (name, paused)
    values (row_name, clock_timestamp() + make_interval(secs => seconds))
    on conflict (name) do update set paused = greatest(one.paused, excluded.paused)
$$;

do $$
declare
    name text;
begin
    foreach name in array array[
        'enter_limit(text, bigint, bigint, bigint)', 'settle_limit(text, bigint, bigint)',
        'pause_limit(text, double precision)'
    ] loop
        execute format('revoke all on function vibe.%s from public', name);
        execute format('grant execute on function vibe.%s to vibe_llms', name);
    end loop;
end
$$;
