-- least: 7
-- Users with data, for copies and checks of everything. The function runs as the owner of the
-- tables, whose policies show all rows, and returns only names.
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
