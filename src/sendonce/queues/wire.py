"""A hint as it travels: JSON, versioned, below 1 KB; and what is said of a message that is none.

    {"v":1,"id":4821,"epoch":0,"version":1,"channel":"sms","key":"shipment-4821:customer-73:sms"}

The id is what counts. The key is for people who look into a queue; one so long that the message would pass
1 KB is left out. A message of a later version is not guessed at: it is parked, and the sweep hints again.
"""

from __future__ import annotations

import json
from typing import Final

from sendonce.ports.queue import Hint

VERSION: Final = 1
BYTES_MAX: Final = 1024
NUMBER_MAX: Final = 2**63 - 1


class Foreign(Exception):
    """A message that is no hint for this queue; the text says why, and quotes nothing of it."""


def encode(hint: Hint) -> bytes:
    """At most `BYTES_MAX` bytes."""
    fields = {
        "v": VERSION,
        "id": hint.delivery_id,
        "epoch": hint.epoch,
        "version": hint.version,
        "channel": hint.channel,
    }
    text = _compact({**fields, "key": hint.key})
    return text if len(text) <= BYTES_MAX else _compact(fields)


def decode(body: bytes, channel: str) -> Hint:
    """The hint in a message of a queue for `channel`. Raises `Foreign`."""
    if len(body) > BYTES_MAX:
        raise Foreign(f"longer than {BYTES_MAX} bytes")
    try:
        fields = json.loads(body.decode("utf-8", "strict"))
    except (ValueError, RecursionError):
        raise Foreign("not JSON") from None
    if not isinstance(fields, dict):
        raise Foreign("not a JSON object")
    version = fields.get("v")
    if type(version) is not int or version < 1:
        raise Foreign("no version")
    if version != VERSION:
        raise Foreign("of a version that this program does not know")
    key = fields.get("key", "")
    if not isinstance(key, str):
        raise Foreign("key is no text")
    if fields.get("channel") != channel:
        raise Foreign("for another channel")
    return Hint(_number(fields, "id"), key, _number(fields, "epoch"), _number(fields, "version"), channel)


def _number(fields: dict[str, object], name: str) -> int:
    number = fields.get(name)
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise Foreign(f"{name} is no number that it can be")
    return number


def _compact(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
