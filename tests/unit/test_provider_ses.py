"""Amazon SES: what is sent and signed, and what its answers mean."""

from __future__ import annotations

import base64
import json
from email import message_from_bytes

import pytest

from sendonce.aws import sign
from sendonce.core.errors import InvalidInput
from sendonce.core.outcome import (
    Accepted,
    AccountError,
    Outcome,
    Reason,
    Rejected,
    Throttled,
    ThrottleScope,
    Unknown,
)
from sendonce.ports.provider import ProviderClass
from sendonce.ports.secret import Secret
from sendonce.providers.ses import CODES, SesProvider, SesSettings, classify
from sendonce.testing.conformance.provider import SmtpContract, json_answer
from tests.api_calls import answer, request_of

MESSAGE = SmtpContract.message
NOW = MESSAGE.frozen_at
TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRq"
    "TflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75Y"
    "U9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9K"
    "SYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)

# The signature. Vectors of AWS's Signature Version 4 test suite (github.com/awslabs/aws-c-auth,
# tests/aws-signing-test-suite/v4), by the names of their folders.

VECTORS: dict[str, tuple[str, str, list[tuple[str, str]], bytes, str]] = {
    "get-vanilla": (
        "GET",
        "/",
        [],
        b"",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    ),
    "post-vanilla": (
        "POST",
        "/",
        [],
        b"",
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
    ),
    "post-header-key-sort": (
        "POST",
        "/",
        [("My-Header1", "value1")],
        b"",
        "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
    ),
    "post-sts-header-before": (
        "POST",
        "/",
        [("X-Amz-Security-Token", TOKEN)],
        b"",
        "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
    ),
    "post-x-www-form-urlencoded": (
        "POST",
        "/",
        [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Length", "13"),
            (
                "x-amz-content-sha256",
                "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
            ),
        ],
        b"Param1=value1",
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_published_vectors(name: str) -> None:
    method, path, headers, body, signature = VECTORS[name]
    authorization = sign(
        method,
        path,
        [*headers, ("Host", "example.amazonaws.com"), ("X-Amz-Date", "20150830T123600Z")],
        body,
        access_key_id="AKIDEXAMPLE",
        secret=Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        region="us-east-1",
        service="service",
    )
    assert authorization.startswith(
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders="
    )
    assert authorization.endswith(f", Signature={signature}")


# What answers mean


def said(name: str, message: str = "") -> dict[str, str]:
    return {"__type": name, "message": message}


ANSWERS: list[tuple[int, object, Outcome]] = [
    (200, {"MessageId": "0102018e-1"}, Accepted("0102018e-1", "200")),
    (200, {}, Unknown("truncated", "no_receipt")),
    (
        429,
        said("TooManyRequestsException", "Maximum sending rate exceeded."),
        Throttled(ThrottleScope.RATE, "TooManyRequestsException"),
    ),
    (
        400,
        said("ThrottlingException", "Maximum sending rate exceeded."),
        Throttled(ThrottleScope.RATE, "ThrottlingException"),
    ),
    (
        400,
        said("ThrottlingException", "Daily message quota exceeded."),
        Throttled(ThrottleScope.QUOTA, "ThrottlingException"),
    ),
    (
        429,
        said("TooManyRequestsException", "Daily message quota exceeded."),
        Throttled(ThrottleScope.QUOTA, "TooManyRequestsException"),
    ),
    (429, {}, Throttled(ThrottleScope.RATE, "http_429")),
    (
        400,
        said("MessageRejected", "Email address is not verified. ..."),
        AccountError(Reason.SENDER, "MessageRejected"),
    ),
    (400, said("MessageRejected", "Spam"), Rejected(Reason.BAD_CONTENT, "MessageRejected")),
    (400, said("com.amazonaws.ses#MessageRejected"), Rejected(Reason.BAD_CONTENT, "MessageRejected")),
    (400, said("BadRequestException"), Rejected(Reason.BAD_CONTENT, "BadRequestException")),
    (
        400,
        said("SendingPausedException"),
        AccountError(Reason.AUTHENTICATION, "SendingPausedException"),
    ),
    (
        400,
        said("AccountSuspendedException"),
        AccountError(Reason.AUTHENTICATION, "AccountSuspendedException"),
    ),
    (
        400,
        said("MailFromDomainNotVerifiedException"),
        AccountError(Reason.SENDER, "MailFromDomainNotVerifiedException"),
    ),
    (404, said("NotFoundException"), AccountError(Reason.CONFIGURATION, "NotFoundException")),
    (403, said("SignatureDoesNotMatch"), AccountError(Reason.AUTHENTICATION, "SignatureDoesNotMatch")),
    (400, said("RequestExpired"), AccountError(Reason.AUTHENTICATION, "RequestExpired")),
    (403, {}, AccountError(Reason.AUTHENTICATION, "http_403")),
    (400, said("ann@example.com"), Rejected(Reason.BAD_CONTENT, "http_400")),
    (500, said("InternalFailure"), Unknown("server_error", "InternalFailure")),
    (503, said("ServiceUnavailable"), Unknown("server_error", "ServiceUnavailable")),
    (503, said("ThrottlingException", "Daily message quota"), Unknown("server_error", "ThrottlingException")),
    (504, {}, Unknown("bad_gateway", "http_504")),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS, ids=lambda part: repr(part)[:50])
def test_what_an_answer_means(status: int, body: object, expected: Outcome) -> None:
    assert classify(answer(status, body), NOW) == expected


def test_the_header_names_the_error_before_the_body() -> None:
    named = (b"x-amzn-ErrorType", b"TooManyRequestsException:http://internal.amazon.com/coral/x/")
    outcome = classify(answer(429, {"message": "Maximum sending rate exceeded."}, named), NOW)
    assert outcome == Throttled(ThrottleScope.RATE, "TooManyRequestsException")


def test_no_answer_suppresses_an_address() -> None:
    assert not any(getattr(make(code), "suppress", False) for code, make in CODES.items())


# What is sent


def test_the_request() -> None:
    accepted = json_answer(200, {"MessageId": "0102018e-1"})
    head, body = request_of(lambda url: provider(url, configuration_set="reminders"), MESSAGE, accepted)
    assert head.startswith("POST /v2/email/outbound-emails HTTP/1.1\r\n")
    assert "\r\nX-Amz-Date: 20260101T000000Z\r\n" in head
    assert "/20260101/eu-west-1/ses/aws4_request, SignedHeaders=content-type;host;x-amz-date, " in head
    assert "X-Amz-Security-Token" not in head
    fields = json.loads(body)
    assert fields["Destination"] == {"ToAddresses": [MESSAGE.to]}
    assert fields["EmailTags"] == [{"Name": "sendonce", "Value": MESSAGE.send_key}]
    assert fields["ConfigurationSetName"] == "reminders"
    mail = message_from_bytes(base64.b64decode(fields["Content"]["Raw"]["Data"]))
    assert mail["To"] == MESSAGE.to
    assert mail["X-Sendonce-Key"] == MESSAGE.send_key


def test_a_temporary_key_sends_and_signs_its_token() -> None:
    accepted = json_answer(200, {"MessageId": "0102018e-1"})
    head, _ = request_of(lambda url: provider(url, session_token=Secret("AQoD")), MESSAGE, accepted)
    assert "\r\nX-Amz-Security-Token: AQoD\r\n" in head
    assert "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, " in head


def test_echo_needs_a_configuration_set() -> None:
    promise = provider("http://127.0.0.1:1").promise
    assert (promise.provider_class, promise.echo, promise.lookup) == (ProviderClass.NEITHER, False, False)
    assert provider("http://127.0.0.1:1", configuration_set="reminders").promise.echo


def test_the_region_names_the_address() -> None:
    settings = SesSettings(region="eu-west-1", access_key_id="AKIDEXAMPLE", secret_access_key=Secret("x"))
    assert settings.base_url == "https://email.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"region": "Ireland"}, "region"),
        ({"access_key_id": "A K"}, "access_key_id"),
        ({"secret_access_key": Secret("")}, "secret_access_key"),
    ],
)
def test_settings_that_cannot_work_name_the_setting(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        provider("http://127.0.0.1:1", **changes)
    assert caught.value.field == named


def provider(url: str, **changes: object) -> SesProvider:
    settings: dict[str, object] = {
        "region": "eu-west-1",
        "access_key_id": "AKIDEXAMPLE",
        "secret_access_key": Secret("s3cret"),
        "base_url": url,
        "allow_plain_http": True,
    }
    return SesProvider(SesSettings(**{**settings, **changes}), now=lambda: NOW)  # type: ignore[arg-type]
