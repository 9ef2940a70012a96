-- least: 8
-- `hash` is the id of a file: the hash of its bytes, unless `content` is that. `name`, `purpose` and
-- `expires` are given by clients.
alter table vibe.files add column content text collate "C";
alter table vibe.files add column purpose text not null default '';
alter table vibe.files add column expires timestamptz;
