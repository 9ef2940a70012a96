-- least: 8
-- Messages that users added to runs, until they are in the conversation. A message is taken when the
-- worker begins to send it. Older code does not send them.
create table vibe.run_steering (
    owner text not null,
    run text collate "C" not null,
    identity text collate "C" not null,
    place bigint generated always as identity,
    data bytea not null,
    taken boolean not null default false,
    primary key (owner, run, identity)
);
alter table vibe.run_steering enable row level security;
alter table vibe.run_steering force row level security;
create policy owner on vibe.run_steering
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.run_steering to vibe_llms;
