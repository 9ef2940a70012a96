-- least: 3
-- The messages of a conversation are pieces of strands. A conversation appends to its own strand;
-- forks share earlier pieces. Positions count within the conversation, from 0.
create sequence vibe.strands;
grant usage on sequence vibe.strands to vibe_llms;

create table vibe.conversations (
    owner text not null,
    identity text collate "C" not null,
    -- Text of metadata.toml, including fields of newer versions. The columns are derived from it.
    metadata text not null,
    format integer not null,
    name text not null,
    model text not null,
    tags text[] not null,
    -- Conversation that it was forked from, and the last message that both share.
    origin text[],
    superseded_by text collate "C" not null,
    created timestamptz not null,
    -- Time of the last change of its messages.
    updated timestamptz not null default clock_timestamp(),
    -- Beginning of the user's first message, and its position.
    title text not null,
    titled integer,
    messages integer not null,
    -- Identity of the last message, or empty.
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
    -- Positions from `first` up to but not including `past`.
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
    -- Line of messages.jsonl, without the newline.
    line bytea not null,
    -- Hashes of contents that it may need.
    hashes text[] collate "C" not null,
    -- Words, as split by the library, and the owner after an `@`.
    words tsvector not null,
    -- Order of arrival.
    number bigint generated always as identity,
    primary key (owner, strand, position)
);
create index messages_by_number on vibe.messages (owner, number);
-- A list of pending entries would occasionally make an append wait.
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

-- Searches the messages of the current user. A policy prevents the use of the word index, because
-- the operator `@@` is not leakproof. So this function runs as the owner of the table, whose policy
-- shows all rows, and selects the user's itself. If more than 1,000 messages match, it rates the
-- newest.
create policy search on vibe.messages for select to current_user using (true);
create function vibe.search_messages(
    wanted tsquery, rated tsquery, every boolean, most integer, skipped integer)
returns table (conversation text, name text, title text, line bytea)
language plpgsql stable security definer
set search_path = pg_catalog, vibe
-- The best index depends on the frequency of the words.
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
