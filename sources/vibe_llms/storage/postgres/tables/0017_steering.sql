-- least: 8
-- Messages that users added to runs. A message is taken when the worker begins to send it, and sent
-- when it is in the conversation. Older code does not send them.
create table vibe.run_steering (
    owner text not null,
    run text collate "C" not null,
    identity text collate "C" not null,
    place bigint generated always as identity,
    data bytea not null,
    state text not null default 'queued' check (state in ('queued', 'taken', 'sent')),
    -- The client's idempotency key and a hash of its request, if any.
    request bytea,
    digest bytea,
    primary key (owner, run, identity),
    unique (owner, run, request)
);
alter table vibe.run_steering enable row level security;
alter table vibe.run_steering force row level security;
create policy owner on vibe.run_steering
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.run_steering to vibe_llms;
