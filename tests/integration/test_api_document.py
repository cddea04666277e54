"""The OpenAPI document is true: its examples work, its answers look as it says, and nothing that can be asked
breaks anything."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from sendonce.api.application import RESOURCES
from sendonce.api.problems import TITLES
from sendonce.api.reminders import ReminderAsked
from sendonce.core.access import Scope
from sendonce.core.reminder import COLUMNS, Asked
from sendonce.pipeline.events import take_in
from sendonce.pipeline.importer import import_rows
from sendonce.table_file import TableFile
from tests.integration.api_world import Answer, Api, reminder, served

FUZZ = 200
SEED = 20261201
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 10**9, 2**63, 2**80, 1.5, 1e308, "", " ", "x", "x" * 3_000, "\x00", "\ud83d",
    "é", "../", "'; DROP TABLE delivery; --", "2026-13-45T99:99", "in 10000000000h", "9" * 400, "a:b:email",
    "%25", "\u202e", [], [[]], [None], {}, {"a": {"b": [{}]}}, ["x"] * 50, "{{ 7*7 }}", "default", "acme",
    "*", "-", "NaN",
)  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    if request.param == "sqlite":
        with served(folder) as made:
            yield made
        return
    schemas = request.getfixturevalue("postgres_schemas")
    url = schemas.take()
    with served(folder, url) as made:
        yield made
    schemas.give_back(url)


ROUTES: Mapping[str, APIRoute] = {
    route.operation_id: route
    for resource in RESOURCES
    for route in resource.router.routes
    if isinstance(route, APIRoute) and route.operation_id
}


class Document:
    """What the service says of itself."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.whole = whole
        self.operations: list[tuple[str, str, dict[str, Any]]] = [
            (method.upper(), path, operation)
            for path, operations in whole["paths"].items()
            for method, operation in operations.items()
            if operation.get("security") != []  # what providers call with: `test_api_events`
        ]

    def example(self, operation: dict[str, Any]) -> Any:
        """The body that it shows; None where there is none."""
        body = operation.get("requestBody")
        if body is None:
            return None
        schema = body["content"]["application/json"]["schema"]
        chosen = next((each for each in [schema, *schema.get("anyOf", [])] if "$ref" in each), schema)
        name = chosen["$ref"].rpartition("/")[2]
        return self.whole["components"]["schemas"][name]["examples"][0]

    def path(self, path: str, operation: dict[str, Any], given: Mapping[str, str]) -> str:
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path":
                name = parameter["name"]
                value = given.get(name) or parameter["schema"].get("examples", [""])[0]
                path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
        needed = {"reason": "an example"} if path.startswith("/v1/keys/") else {}
        return f"{path}?{urlencode(needed)}" if needed else path


def validated(operation: dict[str, Any], answer: Answer) -> None:
    """The answer looks as the document says."""
    if answer.status >= 400:
        assert answer.problem["code"] in TITLES
        return
    assert str(answer.status) in operation["responses"], (operation["operationId"], answer.status)
    model = ROUTES[operation["operationId"]].response_model
    assert model is not None
    TypeAdapter(model).validate_json(answer.body)


def test_each_example_works_in_the_order_of_the_document(api: Api) -> None:
    document = Document(api.get("/v1/openapi.json").ok())
    template = next(o for m, p, o in document.operations if (m, p) == ("POST", "/v1/templates"))
    api.post("/v1/templates", document.example(template)).ok()
    made = api.post("/v1/keys", {"name": "to be replaced", "scopes": ["read"]}).ok(201)
    imported(api, "r-1")
    api.post("/v1/cancellations", {"reminder": "r-1", "reason": "so that it has ended"}).ok()
    take_in(api.app.store, api.app.policy, "mail", [], faulty=["no_id"], source=b"x").result()
    last = [entry for entry in document.operations if entry[0] == "DELETE"]
    seen = set()
    for method, path, operation in [e for e in document.operations if e[0] != "DELETE"] + last:
        body = document.example(operation)
        if operation["operationId"] == "rotate_key":
            body = {**body, "prefix": made["prefix"]}
        answer = api.ask(method, document.path(path, operation, {"prefix": made["prefix"]}), body)
        assert answer.status < 300, (operation["operationId"], answer.body)
        validated(operation, answer)
        seen.add(operation["operationId"])
    assert seen == ROUTES.keys()


def imported(api: Api, id_: str) -> int:
    """A file with one reminder; the import's number."""
    app = api.app
    rows = f"reminder,customer,email,due,template,name\n{id_},c-1,ann@example.com,in 2h,hello,Ann\n".encode()
    table = TableFile(io.BytesIO(rows), COLUMNS)
    return import_rows(app.store, app.policy, table, actor="test", book=app.book).import_id


def test_each_operation_says_what_it_is_for_and_which_key_it_takes(api: Api) -> None:
    document = Document(api.get("/v1/openapi.json").ok())
    for method, path, operation in document.operations:
        assert operation["summary"], path
        assert "default" in operation["responses"], path
        others = [scope for scope in Scope if scope.value != operation["x-scope"]]
        token = api.key(*others)
        answer = api.ask(method, document.path(path, operation, {}), document.example(operation), token=token)
        assert (answer.status, answer.problem["scope"]) == (403, operation["x-scope"]), (method, path)


def test_the_document_knows_the_fields_of_a_reminder() -> None:
    assert list(ReminderAsked.model_fields) == [each.name for each in fields(Asked) if each.name != "tenant"]


def test_every_reference_of_the_document_leads_somewhere(api: Api) -> None:
    whole = api.get("/v1/openapi.json").ok()
    schemas = whole["components"]["schemas"]

    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(whole))
    assert found
    assert {each for each in found if each.rpartition("/")[2] not in schemas} == set()


def test_nothing_that_can_be_asked_breaks_anything(api: Api) -> None:
    """Each example with a value or two replaced by something else: an answer, or a problem; never a bug."""
    document = Document(api.get("/v1/openapi.json").ok())
    api.post("/v1/reminders", {"reminders": [reminder("fuzz-1")]}).ok()
    chance = random.Random(SEED)
    for _ in range(FUZZ):
        method, path, operation = chance.choice(document.operations)
        if operation["operationId"] in ("revoke_key", "rotate_key"):
            continue  # it could end the key of the test itself
        body = mutated(document.example(operation), chance)
        given = {}
        if chance.random() < 0.3:
            given = dict.fromkeys(("reminder", "key", "name", "run"), text_of(chance.choice(JUNK)))
        where = document.path(path, operation, given)
        query = {
            parameter["name"]: text_of(chance.choice(JUNK))
            for parameter in operation.get("parameters", [])
            if parameter["in"] == "query" and chance.random() < 0.3
        }
        if query:
            where += ("&" if "?" in where else "?") + urlencode(query)
        answer = api.ask(method, where, body)
        assert answer.status < 500, (method, where, body, answer.body)
        validated(operation, answer)


def text_of(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def mutated(body: Any, chance: random.Random) -> Any:
    """With one value somewhere in it replaced, added or left out."""
    if isinstance(body, dict) and body:
        name = chance.choice([*body, "more"])
        if chance.random() < 0.2:
            return {each: value for each, value in body.items() if each != name}
        return {**body, name: mutated(body.get(name), chance)}
    if isinstance(body, list) and body and chance.random() < 0.7:
        return [mutated(body[0], chance), *body[1:]]
    return chance.choice(JUNK)
