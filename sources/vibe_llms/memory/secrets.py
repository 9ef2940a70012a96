"""Detect secrets in text: keys, tokens, passwords, card numbers.

Secrets must never be remembered, so doubtful texts count as secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from vibe_llms.base.exceptions import SecretRefused
from vibe_llms.base.redaction import REDACTED, redact

#: Keys of well-known services, anywhere in a text.
_KEYS = r"""(?x)
      -----BEGIN [ ] [A-Z ]* PRIVATE [ ] KEY-----  (?: .*? -----END [ ] [A-Z ]* KEY----- | .* )
    | \b (?: AKIA | ASIA ) [0-9A-Z]{16} \b
    | \b (?: gh[pousr]_ | github_pat_ ) \w{20,}
    | \b glpat- [\w-]{16,}
    | \b hf_ [A-Za-z0-9]{20,}
    | \b xox [abeprs] - [\w-]{10,}
    | \b AIza [\w-]{30,}
    | \b (?: sk | pk | rk ) _ (?: live | test ) _ \w{10,}
    | \b npm_ \w{30,}
    | (?<! [\w-] ) eyJ [\w-]{5,} \. [\w-]{5,} \. [\w-]*
    """
#: A word for a secret, followed by its value.
_NAMED = r"""(?ix)
    \b (?: pass (?: word | phrase | code | wort )s? | passwd | pwd | pw | kennwort | contraseña
         | mot \s de \s passe | wachtwoord | senha | пароль
         | pins? | puk | cvv | cvc | otp | api [\s_-]* keys? | access [\s_-]* keys?
         | secret (?: [\s_-]* (?: key | token ) )? s? | (?: private | encryption ) [\s_-]* keys?
         | tokens? | credentials? | seed [\s_-]* phrase | recovery [\s_-]* (?: code | phrase )s?
         | security [\s_-]* code | (?: wi-?fi | wlan ) [\s_-]* key
         | (?: door | gate | alarm | safe | vault ) \s codes?
         | social \s security (?: \s number )? | ssn )
    (?: \s+ (?: code | number ) )?
    (?: \s+ (?: for | of | to | at | on | in | with ) \s+ [^.!?\n:=]{1,60}? )?
    (?: \s* (?P<sign> [:=] ) \s*
      | ['\u2019]s \s+ (?= \S* \d )
      | \s+ (?: is | are | was | lautet | ist | es | est | è | é | это | to | has \s been ) \s+
      (?: (?: still | now | set \s to | just | simply | called ) \s+ )* )
    (?P<value> "[^"\n]+" | '[^'\n]+' | `[^`\n]+` | [^\s,;]+ )
    """
#: The same in scripts without spaces, and numbers directly after their name.
_SIGNS = r"""(?ix)
    (?: 密码 | 密碼 | 口令 | パスワード | 暗証番号 ) \s* (?: 是 | 为 | 為 | は | [:=\uff1a] ) \s*
      (?P<value> [^\s,;\uff0c\u3002\uff01\uff1f\u3001]+ )
    | \b (?: pin | puk | cvv | cvc | otp ) s? \s+ (?P<digits> \d{3,8} ) \b
    """
#: A secret of several words, up to the end of its sentence.
_PHRASE = r"""(?ix)
    \b (?: pass [\s_-]? | seed [\s_-]* | recovery [\s_-]* | mnemonic [\s_-]* ) phrases?
    (?: \s+ (?: for | of | to ) \s+ [^.!?\n:=]{1,60}? )?
    (?P<sign> \s* [:=] \s* | \s+ (?: is | are | was ) \s+ )
    (?P<value> [^\s.!?] [^.!?\n]* )
    """
#: Words that may follow such a word but are not a value.
_NO_VALUE = """
    a an the my his her their our your not no too very so in on at by for from with without stored
    kept saved lost forgotten expired wrong right invalid valid weak strong short long longer
    secure safe old new used needed required missing important something nothing unknown what
    hashed encrypted managed generated changed be being get use reset limited cheap expensive
    """
_DIGITS = r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w]|\.\d)"
_SOCIAL = r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"
#: Long random words of letters and digits: keys of services that are not listed here.
_SHORTEST_RANDOM = 24
_RANDOM = rf"(?<![\w/.:-])[A-Za-z0-9_+/=-]{{{_SHORTEST_RANDOM},}}(?![\w.])"
_CHANGES_OF_KIND = 6
#: Number of characters shown before and after a secret.
_SHOWN = 60
#: Longer gaps carry no meaning and would make the patterns slow.
_GAP = r"\s{9,}"


def mask_secrets(text: str) -> str:
    """Replace each secret in a text with a mark.

    >>> mask_secrets("My cat is Tom, my password is Xy7-kl.")
    'My cat is Tom, my password is [secret]'
    """
    whole, text = text, squeeze_space(text)
    spans = sorted(_find(text))
    if not spans:
        return redact(whole)
    parts: list[str] = []
    end = 0
    for start, stop in spans:
        if stop > end:
            parts += [text[end : max(start, end)], REDACTED if start >= end else ""]
            end = stop
    return redact("".join(parts) + text[end:])


def squeeze_space(text: str) -> str:
    """Replace each long gap with one space or line break."""
    return _gap().sub(lambda found: "\n" if "\n" in found[0] else " ", text)


def holds_secret(text: str) -> bool:
    """Return True if a text appears to contain a secret."""
    return REDACTED in text or mask_secrets(text) != text


def find_secret(*texts: str) -> str:
    """Return the words around the first secret in some texts, with the secret masked.

    Return an empty string if there is none. A mark from an earlier masking is not a secret.

    >>> find_secret("Tom is a cat.", "My password is Xy7-kl.")
    'My password is [secret]'
    """
    for text in map(squeeze_space, texts):
        masked = mask_secrets(text)
        if masked != text:
            # Skip marks that the text already contains.
            pairs = enumerate(zip(text, masked, strict=False))
            same = next((at for at, (one, other) in pairs if one != other), len(masked))
            start, end = max(same - _SHOWN, 0), same + len(REDACTED) + _SHOWN
            return " ".join(
                f"{'…' * (start > 0)}{masked[start:end]}{'…' * (end < len(masked))}".split()
            )
    return ""


def refuse_secrets(*texts: str) -> None:
    """Raise `SecretRefused` if any text appears to contain a secret.

    Called before text from a user, a model, or a file is stored.
    """
    if masked := find_secret(*texts):
        raise SecretRefused(masked)


def _find(text: str) -> Iterator[tuple[int, int]]:
    keys, named, signs, phrase, digits, social, chance = _shapes()
    for found in keys.finditer(text):
        yield found.span()
    for found in named.finditer(text):
        value = found["value"].strip("\"'`")
        if value.lower().strip(".!?") not in _no_values() or found["sign"]:
            yield found.span("value")
    for found in signs.finditer(text):
        yield found.span("value" if found["value"] else "digits")
    for found in phrase.finditer(text):
        first = found["value"].split()[0]
        if first.lower().strip(",;") not in _no_values() or found["sign"].strip() in (":", "="):
            yield found.span("value")
    for found in digits.finditer(text):
        if is_card_number(found[0]):
            yield found.span()
    for found in social.finditer(text):
        yield found.span()
    for found in chance.finditer(text):
        if _looks_random(found[0]):
            yield found.span()


def is_card_number(text: str) -> bool:
    """Return True if the digits pass the ISO/IEC 7812-1 check, which card numbers must pass.

    >>> is_card_number("4111 1111 1111 1111"), is_card_number("4111 1111 1111 1112")
    (True, False)
    """
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [number * 2 for number in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(number // 10 + number % 10 for number in doubled)) % 10 == 0


def _looks_random(word: str) -> bool:
    if word.startswith("/"):
        # A path is not a key, but one of its names may be.
        return any(
            len(name) >= _SHORTEST_RANDOM and _looks_random(name) for name in word.split("/")
        )
    kinds = [one.isdigit() + 2 * one.isupper() for one in word]
    changes = sum(before != behind for before, behind in pairwise(kinds))
    return any(kind == 1 for kind in kinds) and changes >= _CHANGES_OF_KIND


@cache
def _shapes() -> tuple[re.Pattern[str], ...]:
    # Compiled on first use: most commands do not need it.
    shapes = (_KEYS, _NAMED, _SIGNS, _PHRASE, _DIGITS, _SOCIAL, _RANDOM)
    return tuple(re.compile(shape, re.DOTALL) for shape in shapes)


@cache
def _gap() -> re.Pattern[str]:
    return re.compile(_GAP)


@cache
def _no_values() -> frozenset[str]:
    return frozenset(_NO_VALUE.split())
