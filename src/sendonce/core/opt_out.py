"""What a customer means who answers a message: no more, again, help, or something else.

    OPTED_OUT   a word that providers and regulators know ("STOP"), or a plain request in few words
                ("please stop texting me"): in force at once, and nobody has to look
    OPTED_IN    START or UNSTOP, alone. Nothing else: a "yes" may answer another question
    HELP        HELP or INFO, alone
    UNCLEAR     such a word stands in it, and what is meant is for a person to say ("cancel my Friday
                appointment", "don't stop"). It is kept and shown, never dropped and never guessed
    OTHER       anything else

The text is compared without case, accents, punctuation, quotes and odd widths, since phones add all of
these. Every word of every table holds at every provider: a list that is shorter at one of them makes no "no"
a maybe. Words of a language hold where it is spoken, by the country of the number.

An opt-out holds for the address on its channel, from all senders and in all categories of the tenant: who
says "stop" does not know our categories. START takes back the same.

Sources: FCC, 47 CFR 64.1200(a)(10) (stop, quit, end, revoke, opt out, cancel, unsubscribe; and any reasonable
means); Twilio's default keywords; AWS End User Messaging (REMOVE, OPT-OUT, ARRET, TD); CTIA's HELP and INFO.
The other languages and the plain requests are ours.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from itertools import groupby
from typing import Final

from sendonce.core.value import value

TEXT_READ_MAX: Final = 2_000
"""Characters that are looked at: ten parts of an SMS. A "no" stands in the beginning or not in a message."""


class Meaning(StrEnum):
    """See the module text."""

    OPTED_OUT = "opted_out"
    OPTED_IN = "opted_in"
    HELP = "help"
    UNCLEAR = "unclear"
    OTHER = "other"


@value
class Reading:
    """What a text means, and by which of our words, which may go into a ledger; "" for `OTHER`."""

    meaning: Meaning
    word: str = ""


def read(text: str, *, country: str = "") -> Reading:
    """What `text` means. `country`: ISO 3166 code of the customer's number; "": not known."""
    words = _words(text)
    said = " ".join(words)
    no = NO_EVERYWHERE | NO_BY_COUNTRY.get(country.upper(), frozenset())
    if said in no:
        return Reading(Meaning.OPTED_OUT, said)
    if said in AGAIN:
        return Reading(Meaning.OPTED_IN, said)
    if said in HELP:
        return Reading(Meaning.HELP, said)
    bare = " ".join(word for word in words if word not in BESIDE)
    if len(words) <= REQUEST_WORDS_MAX and bare in REQUESTS:
        return Reading(Meaning.OPTED_OUT, bare)
    found = [word for word in (*no, *REQUESTS, *MAYBE) if f" {word} " in f" {said} "]
    found += [start for start in MAYBE_BEGINNINGS if any(word.startswith(start) for word in words)]
    return Reading(Meaning.UNCLEAR, max(sorted(found), key=len)) if found else Reading(Meaning.OTHER)


def _words(text: str) -> list[str]:
    """The words, without what phones and people add to them; a word said several times once."""
    plain = unicodedata.normalize("NFKD", _APOSTROPHES.sub("", text[:TEXT_READ_MAX]).casefold())
    kept = "".join(character for character in plain if unicodedata.category(character) not in ("Mn", "Cf"))
    words = [word for word, _ in groupby(_WORD.findall(kept))]
    spelled = "".join(words)
    return [spelled] if len(words) > 2 and len(spelled) == len(words) else words  # "s t o p"


_APOSTROPHES = re.compile("['\u2018\u2019\u02bc`\u00b4]")  # "don't" is one word, with one of these or without
_WORD = re.compile(r"[^\W_]+")

NO_FCC: Final = frozenset({"stop", "quit", "end", "revoke", "opt out", "cancel", "unsubscribe"})
NO_BY_PROVIDER: Final = {
    "twilio": frozenset({"stop", "stopall", "unsubscribe", "end", "quit", "cancel", "revoke", "optout"}),
    "aws": frozenset(
        {"stop", "quit", "end", "unsubscribe", "cancel", "remove", "opt out", "optout", "arret", "td"}
    ),
    "telnyx": frozenset({"stop", "stopall", "stop all", "unsubscribe", "cancel", "end", "quit"}),
}
"""What providers act on by themselves, alone in a message. Ours is all of it together."""

NO_EVERYWHERE: Final = NO_FCC.union(*NO_BY_PROVIDER.values())

_DUTCH: Final = frozenset({"afmelden", "uitschrijven"})
_FRENCH: Final = frozenset({"desabonner", "desabonnement", "desinscrire"})
_GERMAN: Final = frozenset({"stopp", "abmelden", "abmeldung", "abbestellen"})
_ITALIAN: Final = frozenset({"disiscrivi", "disiscrivimi", "cancellami"})
_NORDIC: Final = frozenset({"stopp", "afmeld", "avmeld", "avregistrera"})
_POLISH: Final = frozenset({"rezygnuje", "wypisz"})
_PORTUGUESE: Final = frozenset({"parar", "sair"})
_SPANISH: Final = frozenset({"alto", "baja", "parar"})

NO_BY_COUNTRY: Final = {
    **dict.fromkeys(("DE", "AT", "LI"), _GERMAN),
    **dict.fromkeys(("FR", "LU", "MC", "CA"), _FRENCH),
    "BE": _FRENCH | _DUTCH,
    "CH": _FRENCH | _GERMAN | _ITALIAN,
    **dict.fromkeys(("ES", "MX", "AR", "CL", "CO", "PE", "US", "PR"), _SPANISH),
    **dict.fromkeys(("IT", "SM"), _ITALIAN),
    **dict.fromkeys(("BR", "PT"), _PORTUGUESE),
    "NL": _DUTCH,
    **dict.fromkeys(("DK", "NO", "SE"), _NORDIC),
    "PL": _POLISH,
}
"""Words in the languages of a country, as `_words` leaves them: without accents. Alone in a message."""

AGAIN: Final = frozenset({"start", "unstop"})
HELP: Final = frozenset({"help", "info"})

REQUESTS: Final = frozenset(
    {
        "stop",
        "stopall",
        "unsubscribe",
        "opt out",
        "optout",
        "remove",
        "remove number",
        "remove list",
        "take off",
        "take off list",
        "do not text",
        "do not message",
        "do not contact",
        "do not send",
        "do not send more",
        "dont text",
        "dont message",
        "dont contact",
        "dont send",
        "dont send more",
        "no more",
        "leave alone",
    }
)
"""Plain requests, as they are without the words of `BESIDE`. "cancel", "end", "quit" and "revoke" are none:
with any word beside them they may be about what the reminder was about."""

BESIDE: Final = frozenset(
    """
    please pls plz thanks thank you now immediately ok okay hi hello hey sir madam just want i id like to
    us me my your this these those the it any all anymore ever again from of with
    sending texting messaging emailing contacting texts messages msgs sms emails mails reminders
    """.split()  # noqa: SIM905 (one a line would hide them)
)
"""Words that make a request longer and not less clear. None that turns it round, such as "not" or "until"."""

REQUEST_WORDS_MAX: Final = 12
"""A request of more words holds something else as well."""

MAYBE: Final = frozenset({"wrong number", "wrong person", "not interested", "go away", "who is this"})
MAYBE_BEGINNINGS: Final = frozenset({"stop", "unsub", "unsus", "optout"})
"""What also wants a person's eye: the beginnings catch words that were run together or misspelled."""
