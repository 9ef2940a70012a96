-- least: 8
-- As before, but each row is found by an index. The planner would hash the pieces of all
-- conversations, which gets slower as all users' conversations grow. Visibility is checked only for
-- the newest matching messages.
create or replace function vibe.search_messages(
    wanted tsquery, rated tsquery, every boolean, most integer, skipped integer)
returns table (conversation text, name text, title text, line bytea)
language plpgsql stable security definer
set search_path = pg_catalog, vibe
set plan_cache_mode = force_custom_plan
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    select p.conversation, c.name, c.title, newest.line
    from (
        -- Nothing is joined here, so that nothing but the words decides which index is used.
        select m.owner, m.strand, m.position, m.line, m.number, m.words
        from vibe.messages m
        where m.owner = vibe.current_user_name() and m.words @@ wanted
        order by m.number desc
        limit 1000
    ) newest
    join vibe.pieces p
        on p.owner = newest.owner and p.strand = newest.strand and p.past > newest.position
    join vibe.conversations c on c.owner = p.owner and c.identity = p.conversation
    where every or c.superseded_by = '' or (
        select 1 from vibe.conversations o
        where o.owner = c.owner and o.identity = c.superseded_by) is null
    order by ts_rank(newest.words, rated, 1) desc, newest.number desc, p.conversation
    limit most offset skipped;
end
$$;
