"""SQL statements of `PostgresArchive`."""

# ruff: noqa: S608  (all of it is made of constants)
from __future__ import annotations

from vibe_llms.storage.interfaces import FORMAT

#: Number of messages per part in which lines are read.
PART = 1_000
#: Number of the messages found by a search that are rated.
RATED = 1_000
#: End of a piece that grows.
OPEN = 2**31 - 1

ROWS = """
unnest(%(identities)s::text[], %(lines)s::bytea[], %(hashes)s::text[], %(words)s::text[])
    with ordinality as given (identity, line, hashes, words, place)
"""
COLUMNS = "insert into vibe.messages (owner, strand, position, identity, line, hashes, words)"
CREATE = f"""
with made as (
    insert into vibe.conversations (owner, identity, metadata, format, name, model, tags, origin,
        superseded_by, created, title, titled, messages, last)
    values (%(owner)s, %(conversation)s, %(metadata)s, %(format)s, %(name)s, %(model)s, %(tags)s,
        %(origin)s, %(superseded_by)s, %(created)s, %(title)s, %(titled)s, %(count)s, %(last)s)
    on conflict do nothing
    returning strand
), piece as (
    insert into vibe.pieces (owner, conversation, first, past, strand)
    select %(owner)s, %(conversation)s, 0, {OPEN}, strand from made
), added as (
    {COLUMNS}
    select %(owner)s, strand, given.place - 1, given.identity, given.line, given.hashes::text[],
        given.words::tsvector
    from made, {ROWS} order by given.place
)
select strand from made
"""
APPEND = f"""
with grown as (
    update vibe.conversations set
        messages = messages + %(count)s,
        last = case when %(count)s > 0 then %(last)s else last end,
        updated = clock_timestamp(),
        title = case when titled is null then %(title)s else title end,
        titled = case when titled is null then messages + %(titled)s else titled end
    where owner = %(owner)s and identity = %(conversation)s and format <= {FORMAT}
        and (%(after)s::text is null or last = %(after)s)
    returning strand, messages - %(count)s as first
), added as (
    {COLUMNS}
    select %(owner)s, strand, first + given.place - 1, given.identity, given.line,
        given.hashes::text[], given.words::tsvector
    from grown, {ROWS} order by given.place
)
select strand from grown
"""
#: Taken for each user by transactions that may begin or end the sharing of messages.
LOCK = "select pg_advisory_xact_lock(hashtextextended('vibe.pieces/' || %(owner)s, 0))"
MESSAGES = """
vibe.pieces p join vibe.messages m
    on m.owner = p.owner and m.strand = p.strand and m.position >= p.first and m.position < p.past
"""
LOCATE = """
select found.position
from (
    select * from vibe.pieces
    where owner = %(owner)s and conversation = %(conversation)s order by first desc
) p
cross join lateral (
    select position from vibe.messages m
    where m.owner = %(owner)s and m.strand = p.strand and m.position < p.past
        and m.identity = %(message)s
    order by position desc limit 1
) found
limit 1
"""
FORK = f"""
with made as (
    insert into vibe.conversations (owner, identity, metadata, format, name, model, tags, origin,
        superseded_by, created, title, titled, messages, last)
    select owner, %(target)s, %(metadata)s, %(format)s, %(name)s, %(model)s, %(tags)s, %(origin)s,
        %(superseded_by)s, %(created)s, case when titled < %(cut)s then title else '' end,
        case when titled < %(cut)s then titled end, %(cut)s, %(last)s
    from vibe.conversations where owner = %(owner)s and identity = %(conversation)s
    on conflict do nothing
    returning strand
), shared as (
    insert into vibe.pieces (owner, conversation, first, past, strand)
    select %(owner)s, %(target)s, p.first, least(p.past, %(cut)s), p.strand
    from vibe.pieces p, made
    where p.owner = %(owner)s and p.conversation = %(conversation)s and p.first < %(cut)s
), own as (
    insert into vibe.pieces (owner, conversation, first, past, strand)
    select %(owner)s, %(target)s, %(cut)s, {OPEN}, strand from made
)
select strand from made
"""
SHARE_CONTENTS = f"""
insert into vibe.content_uses (owner, holder, hash)
select distinct u.owner, %(holder)s, u.hash
from {MESSAGES} cross join unnest(m.hashes) as needed (hash)
join vibe.content_uses u on u.owner = m.owner and u.hash = needed.hash and u.holder = %(parent)s
where p.owner = %(owner)s and p.conversation = %(target)s
"""
CUT_PIECES = """
with gone as (
    delete from vibe.pieces
    where owner = %(owner)s and conversation = %(conversation)s and first >= %(cut)s
    returning strand
), shortened as (
    update vibe.pieces set past = %(cut)s
    where owner = %(owner)s and conversation = %(conversation)s
        and first < %(cut)s and past > %(cut)s
    returning strand
)
select strand from gone union all select strand from shortened
"""
CUT = f"""
with cut as (
    update vibe.conversations set
        strand = nextval('vibe.strands'), messages = %(cut)s, last = %(after)s,
        updated = clock_timestamp(),
        title = case when titled < %(cut)s then title else '' end,
        titled = case when titled < %(cut)s then titled end
    where owner = %(owner)s and identity = %(conversation)s
    returning strand
)
insert into vibe.pieces (owner, conversation, first, past, strand)
select %(owner)s, %(conversation)s, %(cut)s, {OPEN}, strand from cut
"""
SWEEP = """
delete from vibe.messages m
where m.owner = %(owner)s and m.strand = any(%(strands)s) and m.position >= coalesce((
    select max(p.past) from vibe.pieces p where p.owner = m.owner and p.strand = m.strand), 0)
"""
CUT_HASHES = f"""
select distinct hash from {MESSAGES} cross join unnest(m.hashes) as needed (hash)
where p.owner = %(owner)s and p.conversation = %(conversation)s and m.position >= %(cut)s
"""
CUT_CONTENTS = f"""
delete from vibe.content_uses u
where u.owner = %(owner)s and u.holder = %(holder)s and u.hash = any(%(hashes)s)
    and not exists (
        select from {MESSAGES}
        where p.owner = %(owner)s and p.conversation = %(conversation)s and u.hash = any(m.hashes))
"""
#: The caller sorts the rows, because the database would write them to its disk for that.
RESTORE = f"""
select c.metadata, c.updated, part.start, part.lines
from vibe.conversations c
left join vibe.pieces p on p.owner = c.owner and p.conversation = c.identity
left join lateral (
    select start, (
        select string_agg(m.line, '\\x0a'::bytea order by m.position) from vibe.messages m
        where m.owner = c.owner and m.strand = p.strand
            and m.position >= start and m.position < least(start + {PART}, p.past)
    ) as lines
    from generate_series(p.first, least(p.past, c.messages) - 1, {PART}) as start
) part on true
where c.owner = %(owner)s and c.identity = %(conversation)s
"""
LAST = f"""
select m.identity, m.line from {MESSAGES}
where p.owner = %(owner)s and p.conversation = %(conversation)s and m.position >= %(first)s
order by m.position
"""
IDENTITIES = "select identity from vibe.conversations where owner = %(owner)s order by identity"
SUMMARY = """
select identity, name, title, created, updated, model, tags, origin, messages, format, superseded_by
from vibe.conversations c where owner = %(owner)s
"""
#: Not `not exists`, with which the database would check all conversations before the first one.
IS_LISTED = """
(c.superseded_by = '' or (
    select 1 from vibe.conversations o
    where o.owner = c.owner and o.identity = c.superseded_by) is null)
"""
NEWEST = "order by updated desc, created desc, identity desc"
OLDEST = "order by created, identity"
#: Transactions that last changed the conversations, and a text that differs after each change.
VERSIONS = "select identity, xmin::text from vibe.conversations where owner = %(owner)s"
TOKEN = f"""
select coalesce(md5(string_agg(v.identity || ' ' || v.xmin, ' ' order by v.identity)), '-')
from ({VERSIONS}) v
"""
#: Forks and their parents.
FORKS = """
select identity, origin[1] from vibe.conversations
where owner = %(owner)s and origin is not null
"""
#: Number of messages that each fork of a family took over.
SHARED = f"""
select c.identity, common.last + 1
from vibe.conversations c
cross join lateral (
    select max(m.position) as last from {MESSAGES}
    where p.owner = c.owner and p.conversation = c.identity and m.identity = c.origin[2]
) common
where c.owner = %(owner)s and c.identity = any(%(family)s) and common.last is not null
"""
TIMES = """
select updated, created from vibe.conversations
where owner = %(owner)s and identity = %(conversation)s
"""
#: Conversations after a given one and its times in that order.
FOLLOWS = "(updated, created, identity) < (%(updated)s, %(created)s, %(conversation)s)"
#: Conversations that a text may refer to, and True if lists show them; see `encode_patterns`.
RESOLVE = f"""
select identity, name, title, {IS_LISTED}
from vibe.conversations c
cross join lateral (select case when name = '' then title else name end as called) whole
cross join lateral (select lower(called collate "C") as folded) ascii
where owner = %(owner)s and (
    starts_with(identity, %(begun)s)
    or folded like %(every)s
        and (folded like %(ascii)s or octet_length(folded) > char_length(folded)))
{NEWEST}
"""
SEARCH = """
select * from vibe.search_messages(
    %(wanted)s::tsquery, %(rated)s::tsquery, %(every)s, %(most)s, %(skipped)s)
"""

FILE = "hash, name, mimetype, size, created, coalesce(content, hash), purpose, expires"
KEEP_FILE = f"""
insert into vibe.files (owner, hash, name, mimetype, size, created, content, purpose, expires)
values (%(owner)s, %(hash)s, %(name)s, %(mimetype)s, %(size)s,
    coalesce(%(created)s::timestamptz, clock_timestamp()),
    nullif(%(content)s, %(hash)s), %(purpose)s, %(expires)s::timestamptz)
on conflict (owner, hash) do update set
    name = excluded.name, mimetype = excluded.mimetype, size = excluded.size,
    created = excluded.created, content = excluded.content, purpose = excluded.purpose,
    expires = excluded.expires
returning {FILE}
"""
FILES = f"select {FILE} from vibe.files where owner = %(owner)s"
REMOVE_FILE = f"""
delete from vibe.files where owner = %(owner)s and hash = %(hash)s returning {FILE}
"""
KEEP_OTHERS = """
with held as (
    select owner, hash from vibe.contents
    where owner = %(owner)s and hash = any(%(hashes)s) and present
    for key share
)
insert into vibe.content_uses (owner, holder, hash)
select owner, %(holder)s, hash from held
on conflict do nothing
"""
#: Client histories must not continue a deleted conversation.
REMOVE = """
with continued as (
    delete from vibe.continuations
    where owner = %(owner)s and conversation = any(%(identities)s)
)
delete from vibe.conversations
where owner = %(owner)s and identity = any(%(identities)s)
returning identity, updated, last
"""
REMOVE_PIECES = """
delete from vibe.pieces
where owner = %(owner)s and conversation = any(%(identities)s)
returning strand
"""
TOUCH = """
update vibe.conversations set updated = clock_timestamp()
where owner = %(owner)s and identity = %(conversation)s
"""
