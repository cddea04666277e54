"""The suites are shipped without a test library; here their assertions are told in full."""

import pytest

pytest.register_assert_rewrite(
    "sendonce.testing.conformance.store",
    "sendonce.testing.conformance.provider",
    "sendonce.testing.conformance.queue",
)
