-- least: 8
-- As before, but a deferred run is not claimed before its time, unless it should be cancelled.
create or replace function vibe.is_claimable(run vibe.runs, of_user text, known text[])
returns boolean
language sql stable
return run.status in ('queued', 'running')
    and (run.until < statement_timestamp() or (run.status = 'queued' and run.cancelling))
    and (of_user is null or run.owner = of_user)
    and run.invokers <@ known;
