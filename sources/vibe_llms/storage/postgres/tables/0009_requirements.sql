-- least: 8
-- Ends a transaction whose worker has lost its run, whatever else was sent with it.
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
