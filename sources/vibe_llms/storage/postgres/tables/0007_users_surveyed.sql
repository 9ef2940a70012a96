-- least: 7
-- Who has something, for copies and checks of everything. It runs as the owner of the tables, whose
-- policies let it see all, and returns names only.
create policy survey on vibe.conversations for select to current_user using (true);
create policy survey on vibe.contents for select to current_user using (true);
create policy survey on vibe.files for select to current_user using (true);
create policy survey on vibe.memory_scopes for select to current_user using (true);
create function vibe.survey_users() returns setof text
language sql stable security definer
set search_path = pg_catalog, vibe
as $$
    select owner from vibe.conversations
    union select owner from vibe.contents
    union select owner from vibe.files
    union select owner from vibe.memory_scopes
    order by owner
$$;
revoke all on function vibe.survey_users from public;
grant execute on function vibe.survey_users to vibe_llms;
