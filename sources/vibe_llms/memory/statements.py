"""Whether a sentence says what another one says, and more; and the words that speak against it.

A sentence may stand word for word within another that says something else: that it is a dream, a
rumour, a question, or nearly so. Words that do that are known here, but there are always others. So
what stands before a statement speaks against it, and what stands behind it may only go on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _forms(text: str) -> frozenset[str]:
    """Regular English verbs in all their forms."""
    return frozenset(chain.from_iterable(map(_inflect, text.split())))


def _inflect(verb: str) -> Iterable[str]:
    if verb.endswith("e"):
        return verb, f"{verb}s", f"{verb}d", f"{verb[:-1]}ing"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb, f"{verb[:-1]}ies", f"{verb[:-1]}ied", f"{verb}ing"
    ending = "es" if verb.endswith(("s", "sh", "ch", "x")) else "s"
    return verb, f"{verb}{ending}", f"{verb}ed", f"{verb}ing"


#: Words that change what a sentence says: denial, the past, wishes, conditions, directions.
_PLAIN = _words(
    """
    not no never none nothing nobody nowhere neither nor cannot without hardly barely longer
    stop stops stopped stopping quit quits ceased former formerly previously ex lacks refuses
    avoids except but unless was were had used would could should might may want wants wanted wish
    wishes hope hopes hoped plan plans planned will shall must if when while before after until till
    since from under over above below up down off out against only all some most few
    as than though although whether lest instead otherwise unlike
    almost nearly scarcely rarely seldom sometimes occasionally partly half-heartedly
    perhaps maybe probably possibly potentially presumably supposedly allegedly reportedly
    apparently seemingly ostensibly theoretically hypothetically fictionally jokingly falsely
    wrongly unlikely false untrue fake fictional imaginary alleged rumoured rumored supposed
    rumour rumours rumor rumors myth myths lied hoax joke jokes joking jest
    dream dreams nightmare nightmares fantasy imagination novel novels fiction film movie
    opinion theory vain back once first
    """
)
#: Who says, believes, dreams or pretends something, or forgets it, may be wrong or have changed.
_SAYING = _forms(
    """
    claim believe doubt guess assume suppose suspect imagine pretend dream fantasize fantasise joke
    allege assert insist maintain declare announce predict expect worry wonder
    question ask deny refute dispute recall remember regret promise threaten intend
    consider contemplate suggest propose recommend report mention argue warn
    hint imply presume fake simulate feign attempt refuse fail avoid reject cancel
    rumour rumor hypothesize hypothesise speculate estimate
    """
) | _words(
    """
    say says said saying tell tells told telling think thinks thought thinking swear swears swore
    sworn forget forgets forgot forgotten forgetting mean means meant fears feared
    dreamt try tries tried trying seem seems seemed seeming appear appears appeared
    """
)
_GERMAN = _words(
    """
    nicht kein keine keinen keinem keiner nie niemals ohne nichts weder au\u00dfer statt anstatt war
    waren hatte hatten wollte will m\u00f6chte soll sollte sollen wenn falls sofern bevor vor nach
    seit bis unter \u00fcber aus gegen als ob obwohl nur
    wird werde werden w\u00fcrde w\u00fcrden k\u00f6nnte k\u00f6nnten d\u00fcrfte m\u00fcsste
    w\u00e4re w\u00e4ren h\u00e4tte h\u00e4tten
    kaum fast beinahe selten manchmal teilweise angeblich vermeintlich vermutlich vielleicht
    wahrscheinlich m\u00f6glicherweise scheinbar anscheinend wohl theoretisch eigentlich
    ehemals ehemalig ehemalige ehemaliger fr\u00fcher einst damals
    sagt sagte sagen gesagt behauptet behauptete behaupten meint meinte meinen glaubt glaubte
    glauben denkt dachte denken tr\u00e4umt tr\u00e4umte tr\u00e4umen getr\u00e4umt hofft hoffte
    hoffen w\u00fcnscht w\u00fcnschte w\u00fcnschen vergisst verga\u00df vergessen leugnet leugnete
    bestreitet bestritt bezweifelt bezweifelte zweifelt vermutet vermutete ahnt f\u00fcrchtet
    f\u00fcrchtete erz\u00e4hlt erz\u00e4hlte schreibt schrieb verspricht versprach schw\u00f6rt
    schwor l\u00fcgt log erfindet erfand plant plante versucht versuchte weigert scheint schien
    fragt fragte tut tat traum tr\u00e4ume ger\u00fccht l\u00fcge m\u00e4rchen roman theorie meinung
    """
)
_OTHERS = _words("ne pas jamais rien sans non nunca nada sin")
#: All of them; whatever is missing here keeps statements apart only where they lie within others.
TURNING = _PLAIN | _SAYING | _GERMAN | _OTHERS
#: Words with which a statement goes on that holds as it stands.
_PREPOSITIONS = _words(
    """
    with in at on by near behind beside for to during along inside outside
    mit in im an am bei beim auf neben hinter zu zum zur von vom f\u00fcr
    """
)
_GOING_ON = _PREPOSITIONS | _words(
    "and every each daily now today here there too also "
    "und jeden jede jedes sehr gern jetzt heute auch"
)
_ARTICLES = _words("a an the der die das ein eine")
#: May stand before a statement as an article does.
_POSSESSIVES = _words("my your his her its our their mein meine dein deine seine unser unsere")
#: Stands behind a question, which says nothing of what is asked.
_ASKED = "?"


def is_turning(word: str) -> bool:
    """Whether a word, in small letters, changes what a sentence says."""
    return word in TURNING or word.endswith("n't")


def read_statement(parts: Iterable[str], *, asked: bool) -> tuple[str, ...]:
    """A sentence as it is compared: its words in small letters, without articles."""
    words = [part for part in parts if part not in _ARTICLES]
    return (*words, _ASKED) if words and asked else tuple(words)


def includes(whole: Sequence[str], part: Sequence[str]) -> bool:
    """Whether a statement says at least what another one says, in the same words.

    >>> includes(("ada", "likes", "tea", "with", "honey"), ("ada", "likes", "tea"))
    True
    >>> includes(("ben", "thinks", "ada", "likes", "tea"), ("ada", "likes", "tea"))
    False
    """
    return any(
        _leaves(whole[:start], part, whole[start + len(part) :]) for start in _find(whole, part)
    )


def is_turned(part: Sequence[str], wholes: Iterable[Sequence[str]]) -> bool:
    """Whether a statement stands within others, none of which says it."""
    if len(part) < 2:
        # A single word is no statement.
        return False
    within = [whole for whole in wholes if any(True for _ in _find(whole, part))]
    return bool(within) and not any(includes(whole, part) for whole in within)


def _find(whole: Sequence[str], part: Sequence[str]) -> Iterator[int]:
    for start in range(len(whole) - len(part) + 1):
        if whole[start] == part[0] and whole[start : start + len(part)] == part:
            yield start


def _leaves(before: Sequence[str], part: Sequence[str], behind: Sequence[str]) -> bool:
    """Whether what stands around a statement leaves what it says."""
    if any(map(is_turning, (*before, *behind))):
        return False
    if len(part) == 1:
        return _ASKED not in behind
    if any(word not in _POSSESSIVES and any(map(str.isalnum, word)) for word in before):
        return False
    # A word like "on" at the end belongs to the verb: she turned it, she turned it on.
    if behind and behind[-1] in _PREPOSITIONS | {_ASKED}:
        return False
    return not behind or behind[0] in _GOING_ON or behind[0] == part[-1]
