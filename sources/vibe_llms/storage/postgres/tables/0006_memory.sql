-- least: 6
-- Memory stores vectors with pgvector. If this role cannot create the extension, a superuser has
-- created it before.
create extension if not exists vector;

-- Changes of entries are numbered. A scope is locked during a change, so its numbers are committed
-- in order, and a reader finds all changes after the last number that it knows.
create sequence vibe.memory_changes;
grant usage on sequence vibe.memory_changes to vibe_llms;

create table vibe.memory_scopes (
    owner text not null,
    scope text not null,
    change bigint not null,
    -- Last change that left no row.
    erased bigint not null,
    deduplicated timestamptz,
    deduplicating_until timestamptz,
    primary key (owner, scope)
);
alter table vibe.memory_scopes enable row level security;
alter table vibe.memory_scopes force row level security;
create policy owner on vibe.memory_scopes
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_scopes to vibe_llms;

-- The data of an entry is identical to its file, for an exact export.
create table vibe.memory_entries (
    owner text not null,
    scope text not null,
    place text not null,
    change bigint not null,
    written timestamptz not null default clock_timestamp(),
    moved timestamptz not null default clock_timestamp(),
    data bytea not null,
    primary key (owner, scope, place),
    foreign key (owner, scope) references vibe.memory_scopes on delete cascade
);
create index memory_entries_by_change on vibe.memory_entries (owner, scope, change);
alter table vibe.memory_entries enable row level security;
alter table vibe.memory_entries force row level security;
create policy owner on vibe.memory_entries
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_entries to vibe_llms;

-- Fingerprints that show changes of entries, with times in nanoseconds as for files.
create view vibe.memory_stats with (security_invoker = true) as
select
    owner, scope, place, change, octet_length(data) as size,
    (extract(epoch from written) * 1000000000)::bigint as modified,
    (extract(epoch from moved) * 1000000000)::bigint as changed
from vibe.memory_entries;
grant select on vibe.memory_stats to vibe_llms;

-- Each text is embedded once for all servers. The digest does not reveal the text.
create table vibe.memory_vectors (
    owner text not null,
    model text not null,
    digest bytea not null,
    primary key (owner, model, digest)
);
do $$
begin
    -- The type, wherever the extension is.
    execute (
        select format('alter table vibe.memory_vectors add embedding %I.vector not null', nspname)
        from pg_extension join pg_namespace on pg_namespace.oid = extnamespace
        where extname = 'vector');
end
$$;
alter table vibe.memory_vectors enable row level security;
alter table vibe.memory_vectors force row level security;
create policy owner on vibe.memory_vectors
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_vectors to vibe_llms;

-- Index of a large scope, so that a server does not have to build it from all entries.
create table vibe.memory_snapshots (
    owner text not null,
    scope text not null,
    format text not null,
    embedder text not null,
    parts bytea not null,
    primary key (owner, scope),
    foreign key (owner, scope) references vibe.memory_scopes on delete cascade
);
alter table vibe.memory_snapshots enable row level security;
alter table vibe.memory_snapshots force row level security;
create policy owner on vibe.memory_snapshots
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_snapshots to vibe_llms;

-- Turns that have not been remembered yet. The process with the lease handles a user's turns in
-- order.
create table vibe.memory_tickets (
    owner text not null,
    number bigint generated always as identity,
    turn text not null,
    data bytea not null,
    entered timestamptz not null default clock_timestamp(),
    primary key (owner, turn)
);
create index memory_tickets_by_number on vibe.memory_tickets (owner, number);
alter table vibe.memory_tickets enable row level security;
alter table vibe.memory_tickets force row level security;
create policy owner on vibe.memory_tickets
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_tickets to vibe_llms;

create table vibe.memory_workers (
    owner text primary key,
    holder text not null,
    until timestamptz not null
);
alter table vibe.memory_workers enable row level security;
alter table vibe.memory_workers force row level security;
create policy owner on vibe.memory_workers
    using (owner = vibe.current_user_name()) with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.memory_workers to vibe_llms;
