"""Which account carries a delivery: the first rule that fits, or a sentence that says what to write."""

from __future__ import annotations

import pytest

from sendonce.core.delivery import Channel
from sendonce.core.errors import ConfigError
from sendonce.core.routing import Route, account_for

ROUTES = (
    Route(Channel.SMS, "vip", tenant="bank", category="payment"),
    Route(Channel.SMS, "bank", tenant="bank"),
    Route(Channel.SMS, "payments", category="payment"),
    Route(Channel.SMS, "rest"),
    Route(Channel.SMS, "never reached", tenant="bank"),
    Route(Channel.EMAIL, "mail", category="shipment"),
)


@pytest.mark.parametrize(
    ("channel", "tenant", "category", "account"),
    [
        (Channel.SMS, "bank", "payment", "vip"),
        (Channel.SMS, "bank", "shipment", "bank"),
        (Channel.SMS, "shop", "payment", "payments"),
        (Channel.SMS, "shop", "shipment", "rest"),
        (Channel.EMAIL, "bank", "shipment", "mail"),
    ],
)
def test_the_first_rule_that_fits_wins(channel: Channel, tenant: str, category: str, account: str) -> None:
    assert account_for(ROUTES, channel, tenant, category) == account


def test_without_a_rule_the_error_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"no account for channel email: add .* under \[channel.email\]"):
        account_for(ROUTES, Channel.EMAIL, "bank", "payment")
