-- least: 5
-- Users of the servers. Like vibe.runs, this table has no content, and its owner reads all rows.
create table vibe.users (
    owner text not null primary key,
    -- SHA-256 of the key, in hexadecimal. A key has 256 random bits.
    key_hash text not null unique,
    created timestamptz not null default clock_timestamp()
);
alter table vibe.users enable row level security;
create policy owner on vibe.users
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.users to vibe_llms;

create function vibe.survey_keys()
returns table (name text, key_hash text, created timestamptz)
language sql stable security definer set search_path = pg_catalog, vibe
as $$ select one.owner, one.key_hash, one.created from vibe.users one order by one.owner $$;

create function vibe.find_user(digest text) returns text
language sql stable security definer set search_path = pg_catalog, vibe
as $$ select one.owner from vibe.users one where one.key_hash = digest $$;

-- Replies to users, by hashes of the histories that end with them.
create table vibe.continuations (
    owner text not null,
    chain bytea not null,
    conversation text not null,
    canister text not null,
    system bytea not null,
    primary key (owner, chain)
);
alter table vibe.continuations enable row level security;
alter table vibe.continuations force row level security;
create policy owner on vibe.continuations
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.continuations to vibe_llms;

-- Secrets shared by all servers and hidden from others.
create table vibe.secrets (
    name text not null primary key,
    value bytea not null
);

-- Returns a secret, which the first caller sets.
create function vibe.access_secret(wanted text, fresh bytea) returns bytea
language sql security definer set search_path = pg_catalog, vibe
as $$
    insert into vibe.secrets (name, value) values (wanted, fresh)
    on conflict (name) do update set name = excluded.name
    returning value
$$;

do $$
declare
    name text;
begin
    foreach name in array array[
        'survey_keys()', 'find_user(text)', 'access_secret(text, bytea)'
    ] loop
        execute format('revoke all on function vibe.%s from public', name);
        execute format('grant execute on function vibe.%s to vibe_llms', name);
    end loop;
end
$$;
