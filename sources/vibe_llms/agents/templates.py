"""Templates of agents: the variables in their texts, and the examples in their instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from msgspec import Struct

#: The variable that is the user's message.
INPUT = "input"


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """An example for a model: a message, and the answer that it should get."""

    input: str
    output: str


def is_template(text: str) -> bool:
    """Return True if each dollar sign begins a variable or is doubled.

    >>> is_template("$$5 for ${name}s and $name"), is_template("$5")
    (True, False)
    """
    return Template(text).is_valid()


def survey_variables(*texts: str) -> Sequence[str]:
    """Return the names of the variables in templates, each once.

    >>> survey_variables("$a $$b ${c}", "$a $d")
    ['a', 'c', 'd']
    """
    return [*dict.fromkeys(name for text in texts for name in Template(text).get_identifiers())]


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its variables replaced; the values are not templates themselves."""
    return Template(text).substitute(values)


def list_variables(names: Sequence[str]) -> str:
    """Return names of variables for a sentence.

    >>> list_variables(["language", "tone"])
    '$language, $tone'
    """
    return ", ".join(f"${name}" for name in names)


def draw_examples(examples: Sequence[Example]) -> str:
    """Return examples as a part of the instructions."""
    drawn = [
        f"<example>\n<message>\n{one.input}\n</message>\n<answer>\n{one.output}\n</answer>\n"
        "</example>"
        for one in examples
    ]
    return "\n\n".join(("Examples of messages, and how to answer them:", *drawn))
