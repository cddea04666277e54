"""Keys of the HTTP API on real stores: made, recognised, replaced, taken back, and all of it audited."""

from __future__ import annotations

import json

import pytest

from sendonce.core.access import ApiKey, Scope
from sendonce.core.errors import InvalidInput, NotFound, Refused
from sendonce.pipeline import api_keys
from tests.integration.world import SECOND, World


def recognised(world: World, token: str) -> ApiKey | None:
    return world.read(lambda tx: api_keys.known(tx.api_keys.get, token, now=tx.now))


def test_a_key_is_recognised_by_its_token_and_by_no_other() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["schedule"], actor="operator:ann", tenant="acme")
    other = api_keys.add(world.store, "shop", ["read"], actor="operator:ann")
    found = recognised(world, made.token)
    assert found is not None
    assert (found.tenant, found.prefix) == ("acme", made.key.prefix)
    assert found.scopes == frozenset({Scope.SCHEDULE})
    for token in (
        made.token[:-1],
        made.token[:16] + other.token[16:],
        "so_" + "a" * 12 + made.token[15:],
        "",
    ):
        assert recognised(world, token) is None


def test_the_secret_is_nowhere_in_the_store() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["schedule"], actor="operator:ann")
    kept = [repr(key) for key in api_keys.list_keys(world.store)]
    kept += [
        json.dumps(dict(row)) for row in world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=9))
    ]
    assert made.key.prefix in "".join(kept)
    assert made.token[16:] not in "".join(kept)


def test_a_key_ends_with_its_life() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["read"], actor="operator:ann", life_s=60.0)
    world.clock.advance(59.0)
    assert recognised(world, made.token) is not None
    world.clock.advance(1.0)
    assert recognised(world, made.token) is None


def test_a_revoked_key_is_nobody_and_revoking_again_changes_nothing() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["read"], actor="operator:ann")
    first = api_keys.revoke(world.store, made.key.prefix, reason="leaked", actor="operator:ann")
    world.clock.advance(5.0)
    again = api_keys.revoke(world.store, made.key.prefix, reason="leaked", actor="operator:ann")
    assert first == again
    assert recognised(world, made.token) is None
    actions = [row["action"] for row in world.read(lambda tx: tx.rows("view_audit", before=2**62, limit=9))]
    assert actions.count("key_revoke") == 1


def test_a_key_is_replaced_without_a_gap() -> None:
    world = World("K")
    old = api_keys.add(world.store, "shop", ["read", "cancel"], actor="operator:ann", rate=7, life_s=3600.0)
    world.clock.advance(600.0)
    new = api_keys.rotate(world.store, old.key.prefix, reason="yearly", actor="operator:ann", overlap_s=60.0)
    assert (new.key.name, new.key.scopes, new.key.rate) == ("shop", old.key.scopes, 7)
    assert new.key.expires_at - new.key.created_at == 3600 * SECOND
    assert [recognised(world, token) is not None for token in (old.token, new.token)] == [True, True]
    world.clock.advance(60.0)
    assert [recognised(world, token) is not None for token in (old.token, new.token)] == [False, True]
    with pytest.raises(Refused, match="holds no more"):
        api_keys.rotate(world.store, old.key.prefix, reason="again", actor="operator:ann")


def test_an_overlap_lengthens_no_life() -> None:
    world = World("K")
    old = api_keys.add(world.store, "shop", ["read"], actor="operator:ann", life_s=10.0)
    api_keys.rotate(world.store, old.key.prefix, reason="yearly", actor="operator:ann", overlap_s=3600.0)
    world.clock.advance(10.0)
    assert recognised(world, old.token) is None


def test_a_key_of_another_tenant_is_not_there() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["read"], actor="operator:ann", tenant="acme")
    for call in (api_keys.revoke, api_keys.rotate):
        with pytest.raises(NotFound):
            call(world.store, made.key.prefix, reason="mine", actor="api:x", tenant="default")
    assert recognised(world, made.token) is not None


def test_use_is_noted_at_most_once_a_minute() -> None:
    world = World("K")
    made = api_keys.add(world.store, "shop", ["read"], actor="operator:ann")
    noted = []
    for _ in range(5):
        world.write(lambda tx: api_keys.note_use(made.key.prefix, tx))
        noted.append(api_keys.list_keys(world.store)[0].used_at)
        world.clock.advance(25.0)
    assert len(set(noted)) == 2


@pytest.mark.parametrize(
    "given", [{"life_s": -1.0}, {"life_s": 1e12}, {"rate": 0}, {"tenant": "\n"}, {"name": ""}, {"scopes": []}]
)
def test_a_key_that_cannot_be_is_refused_and_none_is_made(given: dict[str, object]) -> None:
    world = World("K")
    asked = {"name": "shop", "scopes": ["read"], "actor": "operator:ann", **given}
    with pytest.raises(InvalidInput):
        api_keys.add(world.store, **asked)  # type: ignore[arg-type]
    assert api_keys.list_keys(world.store) == []
