-- least: 8
-- Aborts a transaction whose worker has lost its run, with all its other statements.
create function vibe.require_lease(held boolean, refusal text) returns void
language plpgsql set search_path = pg_catalog
as $$
begin
    if held is not true then
        raise exception '%', refusal using errcode = 'VL001';
    end if;
end
$$;
revoke all on function vibe.require_lease from public;
grant execute on function vibe.require_lease to vibe_llms;
