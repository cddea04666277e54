"""The configuration: one `sendonce.toml` and three environment variables, read once into frozen `Settings`.

    reading     finds the file, reads each table, checks the tables against each other
    tables      every setting, declared once; the documentation is held to the same page
    binding     a table becomes a dataclass: one field, one key
    kinds       what a value may be
    problems    what is wrong, said all at once
    settings    what comes out
    store_url   the address of the store

What is promised to the person who writes the file:

- everything wrong is shown at once, one line each: file, table, key, value, rule, fix;
- what cannot be guessed has no default (limits, lanes, expiry, alarm, uncertain policy, zone, consent): the
  message says what to write and where it comes from;
- an unknown key is an error, with the nearest known one;
- a credential stands in the environment or in a file of its own, never here, and is never printed.

What a provider needs besides (host, user, ...) is the provider's to declare: those keys pass through unread
as `AccountSettings.options`, and `bind` makes the adapter's own settings from them.
"""

from sendonce.config.binding import bind, setting
from sendonce.config.problems import ConfigErrors, Place, Problems, did_you_mean
from sendonce.config.reading import find, load, parse, template_text
from sendonce.config.settings import AccountSettings, BrokerSettings, KafkaSettings, Settings
from sendonce.config.store_url import StoreKind, StoreUrl, parse_store_url
from sendonce.config.tables import document, documented_keys, documented_variables

__all__ = [
    "AccountSettings",
    "BrokerSettings",
    "ConfigErrors",
    "KafkaSettings",
    "Place",
    "Problems",
    "Settings",
    "StoreKind",
    "StoreUrl",
    "bind",
    "did_you_mean",
    "document",
    "documented_keys",
    "documented_variables",
    "find",
    "load",
    "parse",
    "parse_store_url",
    "setting",
    "template_text",
]
