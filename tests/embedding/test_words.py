"""Words as they are searched."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from Stemmer import Stemmer

from vibe_llms.embedding import words
from vibe_llms.embedding.words import (
    asks_about_now,
    digest_of,
    is_of_date,
    label,
    split_query,
    split_words,
)


def test_words_are_small_stemmed_and_without_those_that_say_little() -> None:
    assert split_words("The Lanterns were burning, and Ada's cat ran") == [
        *("lantern", "burn", "ada", "cat", "ran")
    ]
    assert split_words("don\u2019t") == split_words("don't") == ["dont"]
    assert split_words("Café ÉCOLE") == split_words("cafe ecole")
    assert split_words("snake_case x2") == ["snake", "case", "x2"]
    assert split_words("") == split_words("... !?") == []


def test_scripts_without_spaces_are_split_into_characters() -> None:
    assert split_words("我喜欢茶") == ["我", "喜", "欢", "茶"]
    assert split_words("tea茶") == ["tea", "茶"]


def test_words_stay_whole_in_other_scripts_and_however_they_are_written() -> None:
    assert len(split_words("शिक्षा और चाय।")) == 3
    assert split_words("தமிழ்") != split_words("தமழ")
    assert split_words("Straße") == split_words("STRASSE")
    assert split_words("mother\u00adland") == split_words("motherland")
    assert split_words("می\u200cخواهم") == split_words("میخواهم")  # noqa: RUF001


def test_a_question_has_each_word_once_and_small_words_where_it_has_no_others() -> None:
    assert split_query("tea, teas and more tea") == ["tea"]
    assert split_query("who is it") == ["who", "is", "it"]


def test_labels_say_who_when_and_what_about() -> None:
    found = label("Ada Lovelace", datetime(2026, 5, 4, tzinfo=UTC), ("green tea",))
    assert found >= {"ada", "green", "tea", "may", "2026", "4", *split_words("monday Lovelace")}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada likes tea", "ada LIKES tea."),
        ("Ada likes “tea”!", 'Ada  likes\n"tea"'),
        ("ﬁne", "fine"),
        ("It is '5', I think", "it is 5 I think"),
        ("Ada is 5.", "Ada is 5"),
    ],
)
def test_the_same_said_with_other_marks_is_the_same(one: str, other: str) -> None:
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada likes C", "Ada likes C++"),
        ("It is 5 degrees", "It is -5 degrees"),
        ("Mood: 😀", "Mood: 😢"),
        ("price 1.50", "price 150"),
        ("!", "?"),
        ("\u0915\u093f", "\u0915\u0940"),
        ("The dose is .5 mg", "The dose is 5 mg"),
        ("Ada writes .NET", "Ada writes net"),
        ("The shelf is 6' high", 'The shelf is 6" high'),
        ("The code is 10²", "The code is 102"),
        ("The recipe takes 1¼ cups", "The recipe takes 11⁄4 cups"),  # noqa: RUF001
        ("Ada likes tea.", "Ada likes tea?"),
    ],
)
def test_different_texts_have_different_digests(one: str, other: str) -> None:
    assert digest_of(one) != digest_of(other)


class Careless:
    """A stemmer that is not thread-safe, as its package says of itself, and shows it at once."""

    def __init__(self) -> None:
        self.stem: Callable[[str], str] = Stemmer("english").stemWord
        self.word = ""

    def __call__(self, word: str) -> str:
        self.word = word
        time.sleep(0)
        return self.stem(self.word)


def stem_in_threads(count: int) -> bool:
    """Whether threads get the stems that one alone gets."""
    stemmer = Careless()
    given = [f"{start}nationalization" + end for start in "abcdefghij" for end in ("", "s", "ing")]
    expected = [stemmer(word) for word in given]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as threads:
        patch.setattr(words, "_stemmer", lambda: stemmer)
        stems = words._stem.__wrapped__
        found = threads.map(lambda _: [stems(word) for word in given], range(count))
        return all(one == expected for one in found)


def test_threads_do_not_disturb_each_others_stems() -> None:
    assert stem_in_threads(16)


def test_a_stemmer_without_a_lock_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(words, "_STEMMING", Open())
    assert not stem_in_threads(32)


@pytest.mark.parametrize(
    ("question", "present"),
    [
        ("Where do I live now?", True),
        ("What am I reading lately?", True),
        ("Do I still work there?", True),
        ("What is my CURRENT address?", True),
        ("These days?", True),
        ("Who knows Ada?", False),
        ("What did the snowman say?", False),
        ("Where did I live as a child?", False),
    ],
)
def test_questions_about_the_present(question: str, present: bool) -> None:
    assert asks_about_now(question) == present


def test_of_a_very_long_question_the_first_words_are_looked_for() -> None:
    text = " ".join(f"word{number}" for number in range(200_000))
    assert split_query(text) == [f"word{number}" for number in range(256)]
    assert split_query("the " * 200_000) == ["the"]


def test_labels_of_a_date_are_told_from_names() -> None:
    date = label("", datetime(2026, 5, 4, tzinfo=UTC))
    assert len(date) == 4
    assert all(map(is_of_date, date))
    assert not any(map(is_of_date, label("Ada", datetime(2026, 5, 4, tzinfo=UTC)) - date))
