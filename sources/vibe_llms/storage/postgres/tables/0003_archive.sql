-- least: 3
-- The messages of a conversation are pieces of strands, one after the other. It appends to a strand
-- of its own; forks share the pieces before. Positions count within the conversation, from 0.
create sequence vibe.strands;
grant usage on sequence vibe.strands to vibe_llms;

create table vibe.conversations (
    owner text not null,
    identity text collate "C" not null,
    -- The text of metadata.toml, with the fields of newer versions; the columns are derived from it.
    metadata text not null,
    format integer not null,
    name text not null,
    model text not null,
    tags text[] not null,
    -- The conversation that it was forked from, and the last message that both share.
    origin text[],
    superseded_by text collate "C" not null,
    created timestamptz not null,
    -- When its messages last changed.
    updated timestamptz not null default clock_timestamp(),
    -- The beginning of the user's first words, and the position of the message that has them.
    title text not null,
    titled integer,
    messages integer not null,
    -- The identity of the last message; empty if there is none.
    last text collate "C" not null,
    strand bigint not null default nextval('vibe.strands'),
    primary key (owner, identity)
);
create index conversations_by_time on vibe.conversations (owner, updated, created, identity);
alter table vibe.conversations enable row level security;
alter table vibe.conversations force row level security;
create policy owner on vibe.conversations
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.conversations to vibe_llms;

create table vibe.pieces (
    owner text not null,
    conversation text collate "C" not null,
    -- Its positions are those from `first` to before `past`.
    first integer not null,
    past integer not null,
    strand bigint not null,
    primary key (owner, conversation, first)
);
create index pieces_by_strand on vibe.pieces (owner, strand);
alter table vibe.pieces enable row level security;
alter table vibe.pieces force row level security;
create policy owner on vibe.pieces
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.pieces to vibe_llms;

create table vibe.messages (
    owner text not null,
    strand bigint not null,
    position integer not null,
    identity text collate "C" not null,
    -- As in messages.jsonl, without the newline.
    line bytea not null,
    -- The contents that it may need.
    hashes text[] collate "C" not null,
    -- The words, as the library splits them, and the owner after an `@`.
    words tsvector not null,
    -- In the order of their arrival.
    number bigint generated always as identity,
    primary key (owner, strand, position)
);
create index messages_by_number on vibe.messages (owner, number);
-- Without a list of pending entries, which would now and then make an append wait.
create index messages_by_words on vibe.messages using gin (words) with (fastupdate = off);
alter table vibe.messages enable row level security;
alter table vibe.messages force row level security;
create policy owner on vibe.messages
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, delete on vibe.messages to vibe_llms;

create table vibe.files (
    owner text not null,
    hash text collate "C" not null,
    name text not null,
    mimetype text not null,
    size bigint not null,
    created timestamptz not null default clock_timestamp(),
    primary key (owner, hash)
);
alter table vibe.files enable row level security;
alter table vibe.files force row level security;
create policy owner on vibe.files
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.files to vibe_llms;

-- Searches the messages of the current user. Under a policy the index of words cannot be used,
-- because the operator `@@` is not leakproof; so this function runs as the owner of the table, whose
-- policy lets it see all, and keeps to the user itself. Of more than 1,000 messages that match, it
-- rates the newest.
create policy search on vibe.messages for select to current_user using (true);
create function vibe.search_messages(
    wanted tsquery, rated tsquery, every boolean, most integer, skipped integer)
returns table (conversation text, name text, title text, line bytea)
language plpgsql stable security definer
set search_path = pg_catalog, vibe
-- How common the words are decides which index is used.
set plan_cache_mode = force_custom_plan
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
            and (every or exists (
                select from vibe.pieces p
                join vibe.conversations c on c.owner = p.owner and c.identity = p.conversation
                where p.owner = m.owner and p.strand = m.strand and p.past > m.position
                    and (c.superseded_by = '' or (
                        select 1 from vibe.conversations o
                        where o.owner = c.owner and o.identity = c.superseded_by) is null)))
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
revoke all on function vibe.search_messages from public;
grant execute on function vibe.search_messages to vibe_llms;
