-- least: 8
-- Contents stored here during an outage of the object store. Older code reads them like other
-- contents in the database. Newer code moves them after the outage.
alter table vibe.contents add column displaced boolean not null default false;
create index contents_displaced on vibe.contents (owner, hash) where displaced and data is not null;

-- Returns users with such contents. It runs as the owner of the tables, like `vibe.survey_users`.
create function vibe.survey_displaced() returns setof text
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select distinct owner from vibe.contents where displaced and data is not null
$$;
revoke all on function vibe.survey_displaced from public;
grant execute on function vibe.survey_displaced to vibe_llms;
