"""Secrets are known by their shape or their name, and what only speaks of them is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.base.exceptions import SecretRefused
from vibe_llms.memory.secrets import (
    find_secret,
    holds_secret,
    is_card_number,
    mask_secrets,
    refuse_secrets,
)

JOINED = "".join
SECRETS = {
    "AKIA" + "IOSFODNN7EXAMPLE": "AWS",
    "ghp_" + "a1B2" * 9: "GitHub",
    "github_pat_" + "11ABCDEFG0" * 3: "GitHub",
    "glpat-" + "x1Y2" * 5: "GitLab",
    "hf_" + "abCD12" * 5: "Hugging Face",
    "xoxb-" + "123456789-abcdef": "Slack",
    "AIza" + "Sy0a_-" * 6: "Google",
    "sk_live_" + "4eC39HqLyjWD": "Stripe",
    "sk-ant-" + "api03-abcdefgh": "Anthropic",
    "npm_" + "a1B2c3" * 6: "npm",
    "eyJhbGciOi" + ".eyJzdWIiOiIx.c2lnbmF0dXJl": "a token of the web",
    "4111 1111 1111 1111": "a card",
    "5500-0000-0000-0004": "a card",
    "078-05-1120": "a number of social security",
    "Zk9xQ2mP7rT4vB8nL1sD6wF3": "no shape, but no word either",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQ\nabc\n-----END PRIVATE KEY-----": "a key in a file",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQ": "the beginning of one",
}


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_key_is_masked_everywhere(secret: str) -> None:
    for text in (secret, f"use {secret}", f"it is\n{secret}\n, you see"):
        masked = mask_secrets(text)
        assert "[secret]" in masked
        assert secret not in masked
        assert not any(word in masked for word in secret.split() if len(word) > 6)
        assert holds_secret(text)
        assert holds_secret(masked)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("My password is hunter2", "My password is [secret]"),
        ("my wifi password for the house is hunter", "my wifi password for the house is [secret]"),
        ("Password: 'correct horse battery'", "Password: [secret]"),
        ("The PIN code is 4711.", "The PIN code is [secret]"),
        ("pin: 4711, and I am Ada", "pin: [secret], and I am Ada"),
        ("API key = abc", "API key = [secret]"),
        ("Mein Passwort lautet Geheim1", "Mein Passwort lautet [secret]"),
        ("our access key is now qqq", "our access key is now [secret]"),
        ("The password was set to frog", "The password was set to [secret]"),
        (
            "log in at https://ada:frog12@example.org/",
            "log in at https://ada:[secret]@example.org/",
        ),
        (
            "My passphrase is correct horse staple. I am Ada.",
            "My passphrase is [secret]. I am Ada.",
        ),
        ("seed phrase: witch feed, shame open", "seed phrase: [secret]"),
        ("The seed phrase for it is ice road\nTea", "The seed phrase for it is [secret]\nTea"),
        ("pw: hunter2", "pw: [secret]"),
        ("my PIN's 4711", "my PIN's [secret]"),
        ("the wifi key is 9f8a-7b6c", "the wifi key is [secret]"),
        ("The door code is 4711.", "The door code is [secret]"),
        ("La password è gatto7", "La password è [secret]"),
        ("A senha é gato7", "A senha é [secret]"),
        ("Il mio codice PIN è 4711", "Il mio codice PIN è [secret]"),
        ("Мой пароль это frog7", "Мой пароль это [secret]"),
        ("密码是gatto7。", "密码是[secret]。"),
        ("パスワードは frog7", "パスワードは [secret]"),
        ("my PIN 4711", "my PIN [secret]"),
        ("secret: a and password: b", "secret: [secret] and password: [secret]"),
    ],
)
def test_what_is_said_to_be_a_secret_is_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "I forgot my password.",
        "My password manager is Bitwarden",
        "我忘记了密码。",
        "I put 12 pins into it",
        "the password is too short",
        "the token is expired",
        "my password's length matters",
        "My passphrase is lost, and my recovery phrase is not stored anywhere",
        "The car key is under the mat",
        "I collect pins and tokens of old games",
        "Call 555-123-4567 on 2026-01-02 at 12:30",
        "I was born on 1990-01-02 and weigh 70.5 kg",
        "It costs 1234567890123 dollars, or 1111111111111111",
        "see sources/vibe_llms/memory/secrets.py or https://example.org/a/very/long/path/to/it",
        "pneumonoultramicroscopicsilicovolcanoconiosis is the longest word",
        "",
    ],
)
def test_what_only_speaks_of_secrets_stays(text: str) -> None:
    assert mask_secrets(text) == text
    assert not holds_secret(text)


def test_numbers_of_cards_are_recognized_by_their_check_digit() -> None:
    assert is_card_number("4111111111111111")
    assert not is_card_number("4111111111111112")
    assert not is_card_number("411111111111")
    assert not is_card_number("0" * 16)


@given(st.text(max_size=200))
def test_masking_twice_is_masking_once(text: str) -> None:
    masked = mask_secrets(text)
    assert mask_secrets(masked) == masked


def test_a_secret_is_shown_by_the_words_around_it() -> None:
    long = f"{'Tom is a cat. ' * 50}My password is Xy7-kl. {'Ada keeps bees. ' * 50}"
    found = find_secret("Tom is a cat.", long)
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) < 150
    assert "My password is [secret]" in found
    assert "Xy7" not in found
    assert find_secret(f"Tom is{' ' * 20}a cat. {long}") == found
    gaps = f"{'Tom is' + ' ' * 20} a cat. " * 9
    assert "[secret]" in find_secret(f"{gaps} sk-ant-api03-AAAABBBBCCCC1234567890")
    assert find_secret("My first one is [secret].", "Tom is a cat.") == ""
    later = find_secret("My first one is [secret]. My password is Xy7-kl.")
    assert later == "My first one is [secret]. My password is [secret]"
    with pytest.raises(SecretRefused, match=r"is not stored: My PIN is \[secret\]"):
        refuse_secrets("My PIN is 1234")


@pytest.mark.parametrize(
    "path", ["/home/anna/projects/site2/v1/src/main2", "~/backup-2026-01-05/photos/img_2034/raw1"]
)
def test_a_path_is_no_secret(path: str) -> None:
    assert mask_secrets(f"My files are in '{path}'") == f"My files are in '{path}'"


def test_a_key_within_a_path_is_one() -> None:
    assert "A1b2" not in mask_secrets("It is at /hooks/A1b2C3d4E5f6G7h8I9j0K1l2M3n4/now")
