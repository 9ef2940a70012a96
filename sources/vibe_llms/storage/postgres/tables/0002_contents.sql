-- least: 2
-- Bytes by SHA-256, each once for each user. The bytes of a row without data are an object in
-- another store. The row is created before the object, which exists once the row is `present`.
create table vibe.contents (
    owner text not null,
    hash text collate "C" not null check (hash ~ '^[0-9a-f]{64}$'),
    size bigint not null,
    data bytea,
    present boolean not null,
    -- Creation time of the row, and time when the bytes were last stored.
    created timestamptz not null default clock_timestamp(),
    stored timestamptz not null default clock_timestamp(),
    primary key (owner, hash),
    check (present or data is null)
);
alter table vibe.contents enable row level security;
alter table vibe.contents force row level security;
create policy owner on vibe.contents
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.contents to vibe_llms;

-- Holders of a content, such as `conversation/ID`. A content in use cannot be deleted.
create table vibe.content_uses (
    owner text not null,
    holder text collate "C" not null,
    hash text collate "C" not null,
    primary key (owner, holder, hash),
    foreign key (owner, hash) references vibe.contents (owner, hash)
);
create index content_uses_by_hash on vibe.content_uses (owner, hash);
alter table vibe.content_uses enable row level security;
alter table vibe.content_uses force row level security;
create policy owner on vibe.content_uses
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, delete on vibe.content_uses to vibe_llms;
