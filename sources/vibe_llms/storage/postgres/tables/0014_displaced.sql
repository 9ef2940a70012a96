-- least: 8
-- Contents whose bytes are here because the bucket was away. Older code reads them as others that are
-- in the database; newer code moves them when the bucket is back.
alter table vibe.contents add column displaced boolean not null default false;
create index contents_displaced on vibe.contents (owner, hash) where displaced and data is not null;

-- Who has some. It runs as the owner of the tables, as `vibe.survey_users` does.
create function vibe.survey_displaced() returns setof text
language sql stable security definer set search_path = pg_catalog, vibe, pg_temp
as $$
    select distinct owner from vibe.contents where displaced and data is not null
$$;
revoke all on function vibe.survey_displaced from public;
grant execute on function vibe.survey_displaced to vibe_llms;
