-- least: 1
create schema vibe;

-- Role that holds all rights on the tables. The roles of programs are its members.
do $$
begin
    if not exists (select from pg_roles where rolname = 'vibe_llms') then
        create role vibe_llms nologin;
    end if;
end
$$;
grant usage on schema vibe to vibe_llms;

create table vibe.migrations (
    number integer primary key,
    name text not null,
    least integer not null,
    applied timestamptz not null default now()
);
grant select on vibe.migrations to vibe_llms;

-- Returns the user of this transaction. Without a user, no rows are visible.
create function vibe.current_user_name() returns text
language sql stable
return nullif(current_setting('vibe.user', true), '');
