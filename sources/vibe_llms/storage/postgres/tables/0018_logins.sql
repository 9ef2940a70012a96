-- least: 8
-- Logins of browsers. Like vibe.users, this table has no content, and its owner reads all rows.
create table vibe.logins (
    owner text not null,
    identity text collate "C" not null,
    -- SHA-256 of the token, in hexadecimal. A token has 256 random bits.
    token_hash text not null unique,
    -- Key of the user at the begin, or an empty string. Another key ends the login.
    key_hash text not null,
    created timestamptz not null,
    expires timestamptz not null,
    client text not null,
    primary key (owner, identity)
);
alter table vibe.logins enable row level security;
create policy owner on vibe.logins
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.logins to vibe_llms;

create function vibe.survey_logins()
returns table (identity text, name text, created timestamptz, expires timestamptz, client text)
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select one.identity, one.owner, one.created, one.expires, one.client
    from vibe.logins one left join vibe.users known on known.owner = one.owner
    where one.key_hash = coalesce(known.key_hash, '') and one.expires > clock_timestamp()
    order by one.created desc
$$;

create function vibe.find_login(digest text)
returns table (identity text, name text, created timestamptz, expires timestamptz, client text)
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select one.identity, one.owner, one.created, one.expires, one.client
    from vibe.logins one left join vibe.users known on known.owner = one.owner
    where one.token_hash = digest
        and one.key_hash = coalesce(known.key_hash, '') and one.expires > clock_timestamp()
$$;

do $$
declare
    name text;
begin
    foreach name in array array['survey_logins()', 'find_login(text)'] loop
        execute format('revoke all on function vibe.%s from public', name);
        execute format('grant execute on function vibe.%s to vibe_llms', name);
    end loop;
end
$$;
