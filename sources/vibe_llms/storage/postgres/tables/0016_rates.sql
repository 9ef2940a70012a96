-- least: 8
-- Requests of users in the last minute, which count in their limits. Older code does not count.
create table vibe.rates (
    owner text not null,
    identity text collate "C" not null,
    entered timestamptz not null,
    requests integer not null,
    tokens bigint not null,
    output integer not null,
    settled boolean not null default false,
    primary key (owner, identity)
);
create index rates_by_age on vibe.rates (owner, entered);
alter table vibe.rates enable row level security;
alter table vibe.rates force row level security;
create policy owner on vibe.rates
    using (owner = vibe.current_user_name())
    with check (owner = vibe.current_user_name());
grant select, insert, update, delete on vibe.rates to vibe_llms;
