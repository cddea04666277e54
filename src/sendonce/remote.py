"""A service over HTTP, as `Client` uses it: the same calls, the same answers, the same errors.

The key says whose data it is. Reminders go in calls of a thousand; what a program could not have meant is
answered here and not sent. Every call may be repeated without doing anything twice, so one that was lost,
or put off by the service, is tried again a few times.

    401, 403       Refused ("unauthorized", "forbidden")
    404            NotFound
    409, 410, 412  Refused, with the code of the problem
    422, 400       InvalidInput, with its field
    429, 503, connection lost, not reached     StoreUnavailable: give the same again
"""

from __future__ import annotations

import http.client
import json
import math
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from sendonce.asking import fields_of_mapping
from sendonce.core.delivery import Channel
from sendonce.core.errors import (
    ConfigError,
    InvalidInput,
    NotFound,
    Refused,
    SendonceError,
    StoreUnavailable,
)
from sendonce.core.feed import Kind
from sendonce.core.lifecycle import Ending, Standing, State
from sendonce.core.reminder import Asked
from sendonce.pipeline.cancel import Cancellation, Selection
from sendonce.pipeline.feed import LIMIT, Page, Told
from sendonce.pipeline.hand_in import Result
from sendonce.pipeline.intake import Verdict
from sendonce.pipeline.story import Later, Moment, Said, Story
from sendonce.ports.secret import Secret
from sendonce.ports.store import Course, Delivery
from sendonce.withdrawal import Answer, Word

REMINDERS_IN_CALL: Final = 1_000
TRIES: Final = 3
WAIT_MAX_S: Final = 5.0
TIMEOUT_S: Final = 60.0
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a request; the service takes 16 MB."""
WAIT_SERVICE_S: Final = 25.0
"""The longest that a service waits for events."""
IDLE_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    retry_after_s: float

    @property
    def again(self) -> bool:
        """It was put off: by a limit, a store that is away, or while the same request is being answered."""
        return self.status in (429, 503) or (self.status == 409 and b'"in_flight"' in self.body)


class Remote:
    """A service by its address (`https://sendonce.example.com`) and a key. Safe to share between threads.

    Raises `ConfigError` for an address or a key that cannot be one. `timeout_s` is for each call.
    """

    def __init__(self, url: str, key: str | Secret, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ConfigError(f"{url!r:.80} is no address of a service: write https://HOST[:PORT]")
        self._key = key if isinstance(key, Secret) else Secret(key)
        if not self._key.reveal().isascii() or not self._key.reveal().isprintable() or not self._key:
            raise ConfigError("a service takes a key: give key=..., as `sendonce key add` showed it")
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._where = f"{parts.scheme}://{parts.netloc}"

    def schedule(
        self, reminders: Iterable[Asked | Mapping[str, object]], *, update: bool = False
    ) -> list[Result]:
        """As `Client.schedule`."""
        results: list[Result] = []
        waiting = iter(_readable(reminders, results))
        for sent in _calls(waiting):
            body = {"reminders": [given for _, given in sent], "update": update}
            document = self._ask("POST", "/v1/reminders", body)
            results += [_result(each, sent[each["index"]][0]) for each in document["results"]]
        return sorted(results, key=lambda result: result.index)

    def cancel(self, selection: Selection, *, reason: str, preview: bool = False) -> Cancellation:
        """As `Client.cancel`."""
        body = {selection.by.value: selection.name, "reason": reason, "preview": preview}
        document = self._ask("POST", "/v1/cancellations", body, once=secrets.token_hex(16))
        return Cancellation(
            selection,
            document["preview"],
            Counter(document["counts"]),
            [
                Answer(0, each["key"], Word(each["answer"]), State(each["state"]), each["changed"])
                for each in document["answers"]
            ],
            document["more"],
            document["changed"],
        )

    def status(self, name: str) -> list[Story]:
        """As `Client.status`; the inner numbers of a delivery (id, epoch, tag, ...) are 0 here."""
        keys = [name]
        if name.count(":") != 2:
            found = self._ask("GET", f"/v1/reminders/{quote(name, safe='')}")["reminders"]
            keys = [delivery["key"] for each in found for delivery in each["deliveries"]]
        return [_story(self._ask("GET", f"/v1/deliveries/{quote(key, safe='')}/story")) for key in keys]

    def events(self, *, after: str = "", since: str = "", limit: int = LIMIT, wait_s: float = 0.0) -> Page:
        """As `Client.events`. `since` as ISO 8601; `wait_s` is cut to what a service waits."""
        query = {"after": after, "since": since, "limit": limit, "wait": min(wait_s, WAIT_SERVICE_S)}
        said = self._ask("GET", f"/v1/events?{urlencode({name: v for name, v in query.items() if v})}")
        return Page(tuple(map(_told, said["events"])), said["cursor"], said["more"])

    def again(self, key: str, *, reason: str) -> Result:
        """As `Client.again`."""
        body = {"delivery": key, "reason": reason}
        return _result(self._ask("POST", "/v1/repetitions", body, once=secrets.token_hex(16)), 0)

    def close(self) -> None:
        """Close what is open. Idempotent."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, method: str, path: str, body: object = None, *, once: str = "") -> Any:
        """`once`: an Idempotency-Key, so that what was done and not heard of is answered as it was."""
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        why = ""
        for number in range(1, TRIES + 1):
            wait_s = 0.2 * number
            try:
                answer = self._call(method, self._path + path, data, once)
            except (OSError, http.client.HTTPException) as error:
                why = type(error).__name__
            else:
                if not answer.again:
                    return _document(answer)
                why = f"it answered {answer.status}"
                wait_s = max(wait_s, answer.retry_after_s)
            if number < TRIES:
                time.sleep(min(wait_s, WAIT_MAX_S))
        raise StoreUnavailable(f"{self._where} did not do it ({why}, {TRIES} times): give the same again")

    def _call(self, method: str, path: str, data: bytes | None, once: str) -> _Answer:
        """One exchange. A connection that was idle may have been closed by the service: then on a new one."""
        while True:
            reused = bool(self._idle)
            connection = self._connection()
            try:
                headers = {"Authorization": f"Bearer {self._key.reveal()}", "Accept": "application/json"}
                if data is not None:
                    headers["Content-Type"] = "application/json"
                if once:
                    headers["Idempotency-Key"] = f'"{once}"'
                connection.request(method, path, data, headers)
                response = connection.getresponse()
                answer = _Answer(
                    response.status, response.read(), _seconds(response.getheader("Retry-After", ""))
                )
            except (OSError, http.client.HTTPException):
                connection.close()
                if reused:
                    continue
                raise
            if len(self._idle) < IDLE_MAX and not response.will_close:
                self._idle.append(connection)
            else:
                connection.close()
            return answer

    def _connection(self) -> http.client.HTTPConnection:
        with suppress(IndexError):  # another thread may have taken the last one
            return self._idle.pop()
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def _readable(
    reminders: Iterable[Asked | Mapping[str, object]], results: list[Result]
) -> Iterator[tuple[int, dict[str, object]]]:
    """Each with its place; what cannot be read is answered at once."""
    for index, given in enumerate(reminders):
        try:
            yield index, _fields(given)
        except InvalidInput as error:
            name = given.get("reminder", "") if isinstance(given, Mapping) else given.reminder
            results.append(Result(index, str(name)[:200], Verdict.INVALID, field=error.field, why=str(error)))


def _fields(given: Asked | Mapping[str, object]) -> dict[str, object]:
    if isinstance(given, Mapping):
        found = fields_of_mapping(given)
    else:
        found = {each.name: getattr(given, each.name) for each in fields(Asked)}
        if found["tenant"] == "default":  # not said, so the key says it
            del found["tenant"]
    with suppress(TypeError, ValueError):
        json.dumps(found, allow_nan=False)
        return found
    raise InvalidInput("data is no plain JSON: use text, numbers, lists, objects", field="data")


def _calls(
    waiting: Iterator[tuple[int, dict[str, object]]],
) -> Iterator[Sequence[tuple[int, dict[str, object]]]]:
    """What goes in one call: up to a thousand, and not too many bytes."""
    while chunk := list(islice(waiting, REMINDERS_IN_CALL)):
        parts = math.ceil(len(json.dumps([given for _, given in chunk])) / BODY_BYTES_MAX)
        size = math.ceil(len(chunk) / parts)
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _document(answer: _Answer) -> Any:
    """What was answered. Raises what a problem says."""
    try:
        document = json.loads(answer.body)
    except ValueError:
        raise SendonceError(
            f"it answered {answer.status} with something else than JSON: is this the address of sendonce?"
        ) from None
    if answer.status < 400:
        return document
    code = str(document.get("reason") or document.get("code") or "error")
    detail = str(document.get("detail") or document.get("title") or f"it answered {answer.status}")
    match answer.status:
        case 400 | 413 | 422:
            raise InvalidInput(detail, field=str(document.get("field") or ""), code=code)
        case 404:
            raise NotFound(detail)
        case 401 | 403 | 409 | 410 | 412:
            raise Refused(detail, code=code)
        case _:
            raise SendonceError(detail, code=code)


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _result(said: Mapping[str, Any], index: int) -> Result:
    return Result(
        index,
        said["reminder"],
        Verdict(said["verdict"]),
        tuple(said["keys"]),
        tuple(said.get("fields", ())),
        said.get("field", ""),
        said.get("why", ""),
        tuple(said.get("notes", ())),
    )


def _told(said: Mapping[str, Any]) -> Told:
    values = {name: said[name] for name in _TOLD_AS_SAID}
    return Told(
        **values,
        kind=Kind(said["kind"]),
        at=_micros(said["at"]),
        maybe=said["maybe_sent"],
        channel=Channel(said["channel"]),
    )


_TOLD_AS_SAID: Final = tuple(
    each.name for each in fields(Told) if each.name not in ("kind", "at", "maybe", "channel")
)


def _story(told: Mapping[str, Any]) -> Story:
    text = told["said"]
    return Story(
        delivery=_delivery(told),
        reminder=told["reminder"],
        headline=told["headline"],
        moments=tuple(
            Moment(each["seq"], _micros(each["at"]), each["local"], each["text"], each["actor"])
            for each in told["moments"]
        ),
        address=told["address"],
        said=None
        if text is None
        else Said(
            text["parts"],
            text["template"],
            text["template_version"],
            text["hash"],
            _micros(text["frozen_at"]),
        ),
        due_local=told["due_local"],
        zone=told["timezone"],
        linked=told["linked"],
        later=tuple(
            Later(
                each["kind"], _micros(each["at"]), each["local"], each["text"], each["code"], each["stands"]
            )
            for each in told["later"]
        ),
    )


def _delivery(said: Mapping[str, Any]) -> Delivery:
    return Delivery(
        id=0,
        tenant=said["tenant"],
        key=said["key"],
        reminder_id=0,
        customer=said["customer"],
        channel=Channel(said["channel"]),
        address_tag="",
        category=said["category"],
        group=said["group"],
        priority=said["priority"],
        standing=Standing(
            State(said["state"]), 0, said["version"], said["maybe_sent"], False, Ending(said["pending"])
        ),
        course=Course(
            due_at=_micros(said["due_at"]),
            next_at=_micros(said["next_at"]),
            expires_at=_micros(said["expires_at"]),
            account=said["account"],
            attempts=said["attempts"],
            receipt=said["receipt"],
            reason=said["reason"],
        ),
        ended_at=_micros(said["ended_at"]),
        seq=len(said["moments"]),
        head="",
    )


def _micros(text: str | None) -> int:
    """An instant as it is answered; 0 for none."""
    if text is None:
        return 0
    span = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
