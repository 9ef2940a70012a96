-- least: 8
-- Imports of other programs' conversations: a record and a report of each, both JSON.
create table vibe.imports (
    owner text not null,
    identity text collate "C" not null,
    record bytea not null,
    report bytea,
    -- What another server wants the server that holds the import to do.
    wish text not null default '',
    updated timestamptz not null default clock_timestamp(),
    primary key (owner, identity)
);
alter table vibe.imports enable row level security;
alter table vibe.imports force row level security;
create policy owner on vibe.imports
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.imports to vibe_llms;
