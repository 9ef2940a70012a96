"""What fits a question, in which order, and what does not."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.retrieval import RetrievalSettings

NOW = datetime(2026, 5, 4, tzinfo=UTC)
ADA = Scope.of_user("ada")


async def search(memory: Memory, question: str, **settings: float) -> list[str]:
    names = {name.replace("_", "-"): value for name, value in settings.items()}
    chosen = msgspec.convert(names, RetrievalSettings)
    found = await memory.search(question, scopes=[GLOBAL, ADA], settings=chosen, now=NOW)
    return [one.entry.content for one in found]


async def test_the_best_comes_first_from_all_scopes_with_its_reasons(memory: Memory) -> None:
    await memory.add("The lantern hangs in the boathouse.", scope=ADA)
    await memory.add("A lantern is a lamp.")
    await memory.add("Tea is served at five.")
    found = await memory.search("Where is the lantern of the boathouse?", scopes=[GLOBAL, ADA])
    assert [one.entry.scope for one in found] == [ADA, GLOBAL]
    assert 1 >= found[0].score > found[1].score > 0
    assert found[0].reasons == {"words": found[0].score}


@pytest.mark.parametrize(
    "question", ["Which planet has rings?", "", "???", "who is it", "quantum chromodynamics"]
)
async def test_irrelevant_questions_find_nothing(memory: Memory, question: str) -> None:
    assert await search(memory, question) == []
    await memory.add("The lantern hangs in the boathouse.")
    await memory.add("Tea is served at five.")
    assert await search(memory, question) == []


async def test_what_has_too_small_a_part_of_the_question_is_left_out(memory: Memory) -> None:
    await memory.add("A lantern.")
    question = "lantern violin glacier saddle compass orchard kettle harbour"
    assert await search(memory, question, least_relevance=0.0) == ["A lantern."]
    assert await search(memory, question, least_relevance=0.5) == []


TALK = (
    "We had a lovely walk along the river this morning, and the dog jumped into the water twice.",
    "My cousin came by train and brought us two jars of plum jam from her garden.",
    "The printer at the office was out of toner again, so nobody could sign the contract.",
    "Tonight we want to watch the third part of that series about the bridge builders.",
)


@pytest.mark.parametrize("repeats", [1, 4, 12])
@pytest.mark.parametrize("place", [0, 2, 4])
async def test_a_question_is_found_in_a_message_of_any_length(
    memory: Memory, repeats: int, place: int
) -> None:
    await memory.add("The violin of Ottoline hangs in the boathouse.")
    for number in range(40):
        await memory.add(f"Neighbour {number} painted fence {number} in green.")
    question = "In which boathouse is the violin?"
    alone = await search(memory, question)
    talk = [*TALK[:place], question, *TALK[place:]] * repeats
    assert (await search(memory, " ".join(talk)))[0] == alone[0]
    assert (await search(memory, "\n\n".join(talk)))[0] == alone[0]


async def test_a_long_message_about_something_else_finds_nothing(memory: Memory) -> None:
    await memory.add("The violin of Ottoline hangs in the boathouse.")
    await memory.add("The dog of the neighbours is afraid of thunder.")
    for number in range(40):
        await memory.add(f"Neighbour {number} painted fence {number} in green.")
    for count in range(1, 5):
        assert await search(memory, " ".join(TALK[:count])) == []


async def test_the_limit_holds(memory: Memory) -> None:
    for number in range(5):
        await memory.add(f"lantern {number}")
    assert len(await search(memory, "lantern", limit=2)) == 2


async def test_questions_about_the_present_prefer_what_is_new(memory: Memory) -> None:
    for place, days in (("Lisbon", 400), ("Porto", 1)):
        await memory.add(f"Ada lives in {place}", created=NOW - timedelta(days=days))
    question = "Where does Ada live these days?"
    assert (await search(memory, question))[0] == "Ada lives in Porto"
    plain = await search(memory, "Where did Ada live?")
    assert await search(memory, question, recency_weight=0.0) == plain


async def test_of_two_that_say_nearly_the_same_the_newer_comes_first(memory: Memory) -> None:
    said = {
        "Ada works in the museum in Porto.": 400,
        "Ada works in the museum shop in Lisbon.": 20,
        "In Porto there is a museum with a garden.": 1,
    }
    for text, days in said.items():
        await memory.add(text, created=NOW - timedelta(days=days))
    question = "In which museum does Ada work?"
    asked = await memory.search(question, settings=RetrievalSettings(newer_first=False), now=NOW)
    assert next(one.entry.content for one in asked) == "Ada works in the museum in Porto."
    found = await memory.search(question, now=NOW)
    texts = [one.entry.content for one in found]
    assert texts.index("Ada works in the museum in Porto.") == 1 + texts.index(
        "Ada works in the museum shop in Lisbon."
    )
    # What is elsewhere is not the same, although it is newer.
    assert sorted(texts) == sorted(said)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    outdated = [one.entry.content for one in found if "outdated" in one.reasons]
    assert outdated == ["Ada works in the museum in Porto."]


async def test_what_was_asked_for_stays_before_what_is_newer_and_something_else(
    memory: Memory,
) -> None:
    await memory.add("The lantern hangs in the boathouse", created=NOW - timedelta(days=9))
    await memory.add("The kettle hangs in the boathouse", created=NOW)
    found = await search(memory, "Which lantern hangs in the boathouse?")
    assert found == ["The lantern hangs in the boathouse", "The kettle hangs in the boathouse"]


async def test_of_many_versions_each_precedes_the_next(memory: Memory) -> None:
    for days in range(40):
        text = f"The lantern costs {days} coins"
        await memory.add(text, created=NOW - timedelta(days=days))
    found = await search(memory, "What does the lantern cost?", limit=40)
    first = found[:30]
    assert first == sorted(first, key=lambda text: int(text.split()[3]))
    assert len(set(found)) == 40


async def test_a_name_that_everything_has_makes_no_entry_an_answer(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder(256))
    things = [f"thing{number}" for number in range(30)]
    for thing in things:
        await memory.add(f"Ottoline likes {thing}")
    settings = RetrievalSettings(least_relevance=1.0)

    async def ask(question: str) -> list[str]:
        found = await memory.search(question, settings=settings)
        return [one.entry.content for one in found]

    assert (await ask("Does Ottoline like thing7?"))[0] == "Ottoline likes thing7"
    assert await ask("Which motorcycle engine does Ottoline like?") == []
    # Without a bar there is none for what is usual either.
    settings = RetrievalSettings(least_relevance=0.0, least_likeness=0.0)
    assert len(await ask("Which motorcycle engine does Ottoline like?")) == settings.limit
    await memory.close()


async def test_a_topic_of_all_entries_is_found_by_a_synonym(tmp_path: Path) -> None:
    class Synonyms(WordsEmbedder):
        def embed_one(self, text: str) -> array[float]:
            return super().embed_one(text.replace("vehicle", "car"))

    memory = Memory(tmp_path, durable=False, embedder=Synonyms(512))
    for number in range(40):
        await memory.add(f"The car of neighbour {number} is red")
    assert len(await memory.search("vehicle")) == 10
    await memory.close()


async def test_the_only_entry_is_found(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder(256))
    await memory.add("Ottoline likes a violin")
    settings = RetrievalSettings(least_relevance=1.0)
    assert len(await memory.search("Does Ottoline like violin music?", settings=settings)) == 1
    await memory.close()


async def test_recency_prefers_what_is_new(memory: Memory) -> None:
    await memory.add("The old lantern.", created=NOW - timedelta(days=300))
    await memory.add("The new lantern shines.", created=NOW - timedelta(days=1))
    await memory.add("The next lantern will shine.", created=NOW + timedelta(days=1))
    assert (await search(memory, "lantern"))[0] == "The old lantern."
    chosen = RetrievalSettings(recency="always", recency_weight=0.5)
    found = await memory.search("lantern", settings=chosen, now=NOW)
    assert found[-1].entry.content == "The old lantern."
    assert [one.reasons["recency"] for one in found if "next" in one.entry.content] == [1.0]
    assert all(0 <= one.reasons["recency"] <= 1 for one in found)


async def test_importance_prefers_what_is_important(memory: Memory) -> None:
    await memory.add("A lantern.", importance=0.0)
    await memory.add("The lantern is a bomb.", importance=1.0)
    assert (await search(memory, "lantern"))[0] == "A lantern."
    assert (await search(memory, "lantern", importance_weight=0.5))[0] == "The lantern is a bomb."


async def test_diversity_avoids_what_says_the_same(memory: Memory) -> None:
    await memory.add("The lantern is red.")
    await memory.add("The lantern: red, red.")
    await memory.add("My uncle repaired one old lantern after the storm came.")
    plain = await search(memory, "red lantern", limit=2)
    assert not any("uncle" in one for one in plain)
    diverse = await search(memory, "red lantern", limit=2, mmr_lambda=0.3, newer_first=False)
    assert diverse[0] == plain[0]
    assert "uncle" in diverse[1]
    assert len(await search(memory, "red lantern", mmr_lambda=0.3, newer_first=False)) == 3


@pytest.mark.parametrize("mmr_lambda", [1.0, 0.5])
async def test_a_file_that_goes_after_the_look_is_left_out(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, mmr_lambda: float
) -> None:
    for number in range(3):
        await memory.add(f"lantern {number}")
    await search(memory, "lantern")
    read = MemoryFiles.read

    def lose(self: MemoryFiles, scope: Scope, place: str) -> object:
        entry = read(self, scope, place)
        if entry.content == "lantern 1":
            raise FileNotFoundError
        return entry

    monkeypatch.setattr(MemoryFiles, "read", lose)
    found = await search(memory, "lantern", mmr_lambda=mmr_lambda)
    assert sorted(found) == ["lantern 0", "lantern 2"]


async def test_what_many_removed_entries_said_is_still_found(memory: Memory) -> None:
    kept = await memory.add("lantern kept")
    files = MemoryFiles(memory.folder, durable=False)
    for number in range(300):
        entry = msgspec.structs.replace(
            kept, content=f"lantern {number}", identity=f"gone-{number}"
        )
        files.write(entry)
    await search(memory, "lantern")
    files.erase(GLOBAL, [place for place in files.scan(GLOBAL) if "gone" in place])
    assert await search(memory, "lantern") == ["lantern kept"]


async def test_the_least_alike_comes_next_where_results_shall_differ(memory: Memory) -> None:
    for text in ("a red lantern lantern", "a red lantern lamp", "a lantern in the boathouse"):
        await memory.add(text, scope=ADA)
    same = await search(memory, "red lantern", mmr_lambda=1.0, newer_first=False)
    assert {*same[:2]} == {"a red lantern lantern", "a red lantern lamp"}
    other = await search(memory, "red lantern", mmr_lambda=0.3, newer_first=False)
    assert (other[0], other[1]) == (same[0], "a lantern in the boathouse")
    # Where they shall differ a little only, relevance decides.
    nearly = await search(memory, "red lantern", mmr_lambda=0.95, newer_first=False)
    assert nearly == same


async def test_importance_alone_can_be_the_score(memory: Memory) -> None:
    for text, importance in (("a lantern", 0.2), ("the lantern lantern", 0.9)):
        await memory.add(text, scope=ADA, importance=importance)
    settings = RetrievalSettings(importance_weight=1.0)
    found = await memory.search("lantern", scopes=[ADA], settings=settings, now=NOW)
    assert [one.score for one in found] == pytest.approx([0.9, 0.2])
    assert [one.reasons["importance"] for one in found] == pytest.approx([0.9, 0.2])


async def test_what_the_named_person_said_comes_before_what_others_answered(
    memory: Memory,
) -> None:
    talk = (
        ("Ada", "My pottery class begins on Tuesday."),
        ("Ben", "A pottery class! I never took a pottery class."),
        ("Ada", "The kiln is old."),
        ("Ben", "My boat needs paint."),
    )
    for minute, (speaker, text) in enumerate(talk):
        await memory.add(
            text,
            role=Role.USER,
            speaker=speaker,
            conversation="talk",
            created=NOW + timedelta(minutes=minute),
        )
    assert (await search(memory, "Which pottery class does Ada take?"))[0] == talk[0][1]
    assert (await search(memory, "Which pottery class does Ben take?"))[0] == talk[1][1]
    # A name alone brings nothing above the minimum.
    assert await search(memory, "What does Ada say about the harbour, the orchard and tea?") == []
