"""Users who start, follow and decide on runs over HTTP while the servers are killed and stopped."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import TypeAlias

from msgspec import Struct

from tests.server.processes import (
    LEASE,
    Balancer,
    Client,
    ResponseFollower,
    RunFollower,
    ServerProcess,
    clients,
    serving_processes,
)
from vibe_llms import Decision, open_session
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
)
from vibe_llms.messages.contents import Reference, text_of
from vibe_llms.runs import RunStatus
from vibe_llms.runs.core import produce_store
from vibe_llms.runs.interfaces import RunRecord, read_lines
from vibe_llms.storage.backends import Backend, opened_backend
from vibe_llms.storage.interfaces import Archive
from vibe_llms.storage.user_stores import produce_users
from vibe_llms.storage.users import find_user_places

#: How many calls a run has.
CALLS = 3
#: The files of each user.
_FILES, _FILE_BYTES = 5, 3000
#: Something that the servers use is away until this returns.
Outage: TypeAlias = Callable[[], Awaitable[object]]
#: So many takeovers have a median that a busy machine does not change much.
_MANY = 20
#: A file that says that a server was stopped or killed by itself.
MOMENT = "moment"


class Figures(Struct):
    """What a storm went through."""

    kills: int = 0
    stops: int = 0
    runs: int = 0
    effects: int = 0
    unknown: int = 0
    decisions: int = 0
    decisions_while_down: int = 0
    replies: int = 0
    reconnects: int = 0
    outages: int = 0
    refusals: int = 0
    files: int = 0
    #: The seconds from the last event of a killed server to the first of the next, for a follower.
    takeovers: list[float] = []


class Storm:
    """Load on the servers of a home, and what its users saw."""

    def __init__(
        self,
        home: Path,
        servers: Sequence[ServerProcess],
        clients: Mapping[str, Client],
        chance: random.Random,
        outages: Sequence[Outage] = (),
    ) -> None:
        """A storm in which what the servers use is away now and then."""
        self.figures = Figures()
        self.configuration = load_configuration(Places.under(home), environment={})
        self.servers = servers
        self._home = home
        self._clients = clients
        self._chance = chance
        self._outages = outages
        #: How long clients wait before they ask again: many of them ask as often as a few.
        self._pause = 0.05 * len(clients)
        self._starting = self._deciding = True
        self._runs: list[tuple[str, RunFollower, ResponseFollower]] = []
        self._decided: dict[str, bool] = {}
        self._replied: dict[str, list[str]] = {user: [] for user in clients}
        self._files: dict[str, dict[str, bytes]] = {user: {} for user in clients}
        #: When no server answered, or one was stopped: from, to.
        self._down: list[tuple[float, float]] = []

    async def hold(self, kills: int, *, together: int = 2) -> Figures:
        """Hold runs until so many servers were killed and all runs have ended; check everything.

        Servers that end by themselves are started again.
        """
        async with asyncio.TaskGroup() as others:
            for client in self._clients.values():
                others.create_task(self._decide(client))
            async with asyncio.TaskGroup() as users:
                for user, client in self._clients.items():
                    users.create_task(self._talk(user, client))
                    for _ in range(together):
                        users.create_task(self._hold_runs(user, client))
                await self._kill(kills)
                others.create_task(self._revive())
                self._starting = False
            await self._settle()
        async with opened_backend(self.configuration) as backend:
            await self._check(backend)
        self.figures.reconnects = sum(one.reconnects for one in self._clients.values())
        self.figures.refusals = sum(one.refusals for one in self._clients.values())
        return self.figures

    async def _settle(self) -> None:
        """Wait until all runs have ended, those too that no client has learned of."""
        async with opened_backend(self.configuration) as backend:
            store = produce_store(backend)
            while any((await store.count_unfinished()).values()):
                await asyncio.sleep(0.1)
            await store.close()
        self._deciding = False

    async def _hold_runs(self, user: str, client: Client) -> None:
        while True:
            run = await client.start("Move the money.")
            stranger = self._chance.choice([*self._clients.keys() - {user}] or [""])
            if stranger:
                found = await self._clients[stranger].send("GET", f"/api/runs/{run}")
                assert found.status_code == 404, "another user sees a run"
            followers = RunFollower(client, run), ResponseFollower(client, run)
            self._runs.append((user, *followers))
            await asyncio.gather(*(one.follow() for one in followers))
            if not self._starting:
                return

    async def _talk(self, user: str, client: Client) -> None:
        while self._starting:
            text = f"This is message {len(self._replied[user])}."
            messages = [{"role": "user", "content": text}]
            body = {"model": "scripted/talk", "messages": messages}
            await client.ask("POST", "/v1/chat/completions", body)
            self._replied[user].append(text)
            if len(self._files[user]) < _FILES:
                data = self._chance.randbytes(_FILE_BYTES)
                found = await client.send("POST", "/api/files?name=noise", data=data)
                assert found.status_code == 201, found.text
                self._files[user][found.json()["id"]] = data
            await asyncio.sleep(self._pause)

    async def _decide(self, client: Client) -> None:
        while self._deciding:
            found = await client.ask("GET", "/api/runs?status=waiting&limit=1000")
            for run in found["runs"]:
                path = f"/api/runs/{run['id']}"
                for one in (await client.ask("GET", path))["approvals"]:
                    if one["allowed"] is None:
                        await self._decide_one(client, f"{path}/decide", one["invocation"])
            await asyncio.sleep(self._pause)

    async def _decide_one(self, client: Client, path: str, call: str) -> None:
        assert call not in self._decided, "it was decided before"
        decision = {"invocation": call, "allowed": is_allowed(call)}
        # Whichever was lost, it is decided once.
        for _ in range(2):
            assert await client.ask("POST", path, decision) == {**decision, "always": False}
        self._decided[call] = is_allowed(call)
        self.figures.decisions += 1
        refused = await client.send("POST", path, {**decision, "allowed": not is_allowed(call)})
        assert refused.status_code == 409, "a decision was changed"

    async def _decide_while_down(self) -> None:
        """Decide for the user `local` as the command does, while no server runs."""
        async with open_session(configuration=self.configuration) as session:
            session.access_runs().worker.pause()
            for record in await session.survey_runs(statuses=(RunStatus.WAITING,)):
                run = await session.access_run(record.identity)
                for one in await run.survey_approvals():
                    if one.allowed is None:
                        decision = Decision(is_allowed(one.invocation))
                        await run.decide(one.invocation, decision)
                        self.figures.decisions_while_down += 1

    async def _kill(self, kills: int) -> None:
        figures, chance = self.figures, self._chance
        while figures.kills < kills or figures.outages < len(self._outages):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            await self._have_outage(figures.kills / max(kills, 1))
            victims = [*self.servers] if chance.random() < 0.25 else [chance.choice(self.servers)]
            begun = time.monotonic()
            if len(victims) < len(self.servers) and chance.random() < 0.2:
                # As a machine that sleeps: it goes on after its leases have ended.
                await victims[0].send(signal.SIGSTOP)
                await asyncio.sleep(LEASE * 1.5)
                await victims[0].send(signal.SIGCONT)
                figures.stops += 1
                self._down.append((begun, time.monotonic()))
                continue
            await asyncio.gather(*(one.kill() for one in victims))
            figures.kills += len(victims)
            if len(victims) == len(self.servers):
                await self._decide_while_down()
            await asyncio.gather(*(one.start() for one in victims))
            if len(victims) == len(self.servers):
                self._down.append((begun, time.monotonic()))

    async def _have_outage(self, progress: float) -> None:
        """Begin the next outage if it is time; they are spread over the storm."""
        done = self.figures.outages
        if done < len(self._outages) and progress >= done / len(self._outages):
            begun = time.monotonic()
            await self._outages[done]()
            # Leases end, and workers look again.
            self._down.append((begun, time.monotonic() + 2 * LEASE))
            self.figures.outages += 1

    async def _revive(self) -> None:
        while self._deciding:
            for server in self.servers:
                if not server.alive:
                    self.figures.kills += 1
                    await server.start()
            await asyncio.sleep(0.05)

    async def _check(self, backend: Backend) -> None:
        figures, effects = self.figures, self._home / "effects"
        done = effects.read_text().split() if effects.exists() else []
        assert len(done) == len(set(done)), "an effect was repeated"
        figures.effects = len(done)
        followed = {one.run: (one, other) for _, one, other in self._runs}
        known: set[str] = set()
        store = produce_store(backend)
        try:
            for user in self._clients:
                archive = access_archive(backend, user)
                records = await store.survey(user)
                figures.runs += len(records)
                for record in records:
                    canisters = await self._check_run(archive, record, set(done))
                    known |= {one.identity for one in canisters}
                    if found := followed.pop(record.identity, None):
                        figures.takeovers += self._check_followed(found[0], canisters)
                        check_response(found[1])
                await self._check_replied(archive, user)
                for identity, data in self._files[user].items():
                    found_file = await archive.access_file(identity)
                    reference = Reference(found_file.id, found_file.size)
                    assert await archive.load(reference) == data, "a file was lost"
                    figures.files += 1
        finally:
            await store.close()
        assert not followed, "a run was lost"
        if not (figures.kills or figures.stops or (self._home / MOMENT).exists()):
            assert not figures.takeovers, "a run was taken from a worker that lived"
        assert known >= set(done), "a call had an effect that no history has"
        if len(figures.takeovers) > _MANY:
            assert median(figures.takeovers) < LEASE + 1, "takeovers take too long"
        for server in self.servers:
            assert "Traceback" not in server.log.read_text(), server.log.read_text()

    async def _check_run(
        self, archive: Archive, record: RunRecord, done: set[str]
    ) -> Sequence[Canister]:
        assert record.status is RunStatus.COMPLETED, f"a run failed: {record.error}"
        history = (await archive.restore(record.conversation)).canisters
        prompt = {one.identity for one in read_lines(record.prompt)}
        last = max(place for place, one in enumerate(history) if one.identity in prompt)
        canisters = history[last + 1 :]
        calls = [one for one in canisters if isinstance(one, InvocationCanister)]
        answers = [one for one in canisters if isinstance(one, ResultCanister)]
        results = {one.invocation: one for one in answers}
        assert len(calls) == CALLS, "a message was lost"
        assert len(answers) == CALLS, "a result was lost, or is there twice"
        assert {one.identity for one in calls} == results.keys(), "a result was lost"
        for call in calls:
            text = text_of(results[call.identity].contents)
            if text == INTERRUPTED:
                self.figures.unknown += 1
            else:
                assert text.startswith(("sent", "withdrew")) is (call.identity in done), text
            if call.name == "bank/withdraw" and not is_allowed(call.identity):
                assert call.identity not in done, "a call ran that was denied"
        return canisters

    def _check_followed(self, follower: RunFollower, canisters: Sequence[Canister]) -> list[float]:
        """What a follower saw is whole, in order, once, and in the history.

        Returns how long each takeover took.
        """
        history = {one.identity: one for one in canisters}
        cursors = [cursor for cursor, _ in follower.seen]
        events = [event for _, event in follower.seen]
        assert cursors == sorted(set(cursors)), "a cursor came twice"
        once = Counter(
            (one["event"], one.get("message") or one.get("invocation"))
            for one in events
            if one["event"] in ("message-started", "message-completed", "call-ended")
        )
        assert {*once.values()} == {1}, "an event came twice"
        texts: dict[str, str] = {}
        for one in events:
            if one["event"] == "delta":
                texts[one["message"]] = texts.get(one["message"], "") + one["text"]
        named = {kind: {one[key] for one in events if one["event"] == kind} for kind, key in _NAMED}
        replies = {
            identity: one
            for identity, one in history.items()
            if isinstance(one, AssistantCanister | InvocationCanister)
        }
        assert named["message-completed"] == replies.keys(), "a message was lost"
        results = {one.identity for one in canisters if isinstance(one, ResultCanister)}
        assert named["call-ended"] == results, "a result was lost"
        for identity, canister in replies.items():
            text = texts.get(identity, "")
            if isinstance(canister, InvocationCanister):
                said = canister.arguments
            else:
                said = "".join(getattr(one, "text", "") for one in canister.contents)
            assert text == said, "a text was lost"
        again = {
            one["message"] for one in events if one["event"] == "continued" and "message" in one
        }
        begun = named["message-started"] - named["message-completed"]
        assert begun == again - {""}, "a message started again, and that was not announced"
        return [*self._measure(follower)]

    def _measure(self, follower: RunFollower) -> Sequence[float]:
        found = []
        for place, (_, event) in enumerate(follower.seen):
            earlier = follower.seen[place - 1][1]["event"] if place else "approval-requested"
            if event["event"] == "continued" and earlier != "approval-requested":
                visits = follower.visits[place - 1 : place + 1]
                begun, ended = follower.times[place - 1 : place + 1]
                # Much less than a lease is the time of one that was not there when it happened.
                watched = visits[0] == visits[1] and ended - begun > LEASE / 2
                if watched and not any(start < ended and end > begun for start, end in self._down):
                    found.append(ended - begun)
        return found

    async def _check_replied(self, archive: Archive, user: str) -> None:
        found = [await archive.restore(one.identity) for one in await archive.survey()]
        answered = {
            text_of(one.canisters[0].contents)
            for one in found
            if any(isinstance(canister, AssistantCanister) for canister in one.canisters)
        }
        assert answered.issuperset(self._replied[user]), "a reply was lost"
        self.figures.replies += len(self._replied[user])


_NAMED = (
    ("message-started", "message"),
    ("message-completed", "message"),
    ("call-ended", "result"),
)


def check_response(follower: ResponseFollower) -> None:
    """The same for what a follower saw in the dialect of Responses."""
    seen = follower.seen
    numbers = [one["sequence_number"] for one in seen]
    assert numbers == sorted(set(numbers)), "a number came twice"
    places = Counter(
        (one["type"], one["item"]["id"]) for one in seen if "output_item" in one["type"]
    )
    assert {*places.values()} == {1}, "an item came twice"
    begun = [one for one in seen if one["type"] == "response.output_item.added"]
    indices = [one["output_index"] for one in begun]
    assert indices == [*range(len(indices))], "two items have one place"
    texts: dict[str, str] = {}
    for one in seen:
        # Reasoning comes as a summary too, in pieces.
        if one["type"].endswith(".delta") and "summary" not in one["type"]:
            texts[one["item_id"]] = texts.get(one["item_id"], "") + one["delta"]
    again = {one["message"] for one in seen if one["type"] == "x:response.continued"}
    shown = {
        one["item"]["id"]: one["item"]["content"]
        for one in seen
        if one["type"] == "response.output_item.done" and "content" in one["item"]
    }
    final = {
        one["id"]: one["content"] for one in seen[-1]["response"]["output"] if "content" in one
    }
    texts_begun = {one["item"]["id"] for one in begun if "content" in one["item"]}
    assert texts_begun == shown.keys(), "an item was lost"
    for identity, content in final.items():
        assert shown.get(identity) == content, "an item was lost"
        said = "".join(part["text"] for part in content)
        assert texts.get(identity) == said, "a text was lost"
    for identity in shown.keys() - final.keys():
        assert identity.split("_")[2] in again, "an item was cut, and that was not announced"


def is_allowed(call: str) -> bool:
    """What all of its user's programs decide on a call."""
    return zlib.crc32(call.encode()) % 10 < 7


def access_archive(backend: Backend, user: str) -> Archive:
    """The archive of a user."""
    return backend.open_archive(user, find_user_places(backend.configuration.places, user))


@asynccontextmanager
async def storming(
    home: Path,
    users: Sequence[str] = ("local", "ada"),
    *,
    servers: int = 2,
    workers: int = 0,
    outages: Sequence[Outage] = (),
    bug: str = "",
) -> AsyncIterator[Storm]:
    """A storm over a home that is prepared; with workers, its servers are behind a balancer."""
    chance = random.Random(0)
    configuration = load_configuration(Places.under(home), environment={})
    async with opened_backend(configuration) as backend:
        store = produce_users(backend)
        keys = {user: await store.add(user) for user in users}
    async with (
        serving_processes(home, servers, workers=workers, bug=bug) as processes,
        Balancer(processes[:servers], chance).open() as balancer,
        clients([balancer] if workers else processes, keys, chance) as made,
    ):
        yield Storm(home, processes, made, chance, outages)
