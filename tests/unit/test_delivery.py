"""A delivery's identity: keys that read back, keys for providers that tell nothing, stable for ever."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sendonce.core.delivery import (
    ID_LENGTH_MAX,
    PARTITIONS,
    Channel,
    Identity,
    address_tag,
    check_id,
    parse_channel,
    parse_key,
    partition_of,
    send_key,
)
from sendonce.core.errors import InvalidInput

SECRET = b"s" * 32
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
identities = st.builds(Identity, names, names, st.sampled_from(Channel))


def test_a_key_reads_as_reminder_customer_channel() -> None:
    assert Identity("shipment-4821", "customer-73", Channel.SMS).key == "shipment-4821:customer-73:sms"
    assert Identity("a:b", "50%", Channel.EMAIL).key == "a%3Ab:50%25:email"


@given(identities)
def test_a_key_reads_back(identity: Identity) -> None:
    assert parse_key(identity.key) == identity


@given(identities, identities)
def test_two_identities_never_share_a_key(one: Identity, other: Identity) -> None:
    assert (one.key == other.key) is (one == other)


@pytest.mark.parametrize("key", ["", "a", "a:b", "a:b:sms:d", "a:b:fax", "a::"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        parse_key(key)


@pytest.mark.parametrize("text", ["sms", " SMS ", "Sms"])
def test_a_channel_is_found_by_name(text: str) -> None:
    assert parse_channel(text) is Channel.SMS


def test_an_unknown_channel_lists_the_known() -> None:
    with pytest.raises(InvalidInput, match="unknown channel 'fax': use one of email, sms"):
        parse_channel("fax")


def test_an_id_is_trimmed_and_bounded() -> None:
    assert check_id("  loan-77 ", "reminder") == "loan-77"
    assert check_id("x" * ID_LENGTH_MAX, "reminder") == "x" * ID_LENGTH_MAX
    for text, match in (
        (" \t", "reminder is empty"),
        ("x" * (ID_LENGTH_MAX + 1), "at most 200"),
        ("a\nb", "control or invisible"),
        ("a\x00b", "control or invisible"),
        ("a\u200bb", "control or invisible"),
        ("a\ud800b", "control or invisible"),
    ):
        with pytest.raises(InvalidInput, match=match) as refused:
            check_id(text, "reminder")
        assert refused.value.field == "reminder"


def test_keys_and_tags_are_what_they_always_were() -> None:
    """A change here would make every provider forget us and every opt-out miss: these are for ever."""

    def by_hand(text: str) -> str:
        return hmac.new(SECRET, text.encode(), hashlib.sha256).hexdigest()

    assert send_key(SECRET, "t", "a:b:sms", 2) == by_hand("send\0t\0a:b:sms\x002")
    assert address_tag(SECRET, "t", "sms", "+12025550123") == by_hand("address\0t\0sms\0+12025550123")[:32]
    assert partition_of("t", "customer-73") == 967
    assert partition_of("default", "customer-73") == 370


def test_a_send_key_is_one_for_each_content_and_shows_nobody() -> None:
    keys = {
        send_key(secret, tenant, key, version)
        for secret in (SECRET, b"t" * 32)
        for tenant in ("t", "u")
        for key in ("a:b:sms", "a:b:email")
        for version in (1, 2, 11)
    }
    assert len(keys) == 2 * 2 * 2 * 3
    assert {len(key) for key in keys} == {64}


@given(tenant=names, customer=names)
def test_a_partition_is_in_range_and_depends_on_both(tenant: str, customer: str) -> None:
    assert 0 <= partition_of(tenant, customer) < PARTITIONS


def test_customers_spread_evenly() -> None:
    counts = Counter(partition_of("t", f"customer-{number}") for number in range(20_480))
    assert len(counts) == PARTITIONS
    assert max(counts.values()) < 50  # 20 on average
