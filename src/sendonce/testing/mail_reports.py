"""Mail that comes back, as servers, mailbox providers and people's robots write it: for tests and drills.

    status_report(sent, to=path, action="failed", status="5.1.1")     RFC 3464
    feedback_report(sent, to=box)                                     RFC 5965
    vacation(sent, to=path)                                           RFC 3834
    old_bounce(sent, to=path)                                         words, as before there was a format

`sent` is the mail as it left, `to` the return path that it had. All of it is bytes as a mailbox holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from email.parser import BytesHeaderParser


def status_report(
    sent: bytes,
    *,
    to: str,
    action: str = "failed",
    status: str = "5.1.1",
    recipient: str = "",
    envelope_id: str = "",
    diagnostic: str = "",
    returned: str = "text/rfc822-headers",
    return_path: str = "<>",
    message_id: str = "<report-1@mx.example.net>",
    date: str = "Thu, 1 Jan 2026 00:10:00 +0000",
    more: Sequence[str] = (),
) -> bytes:
    """A delivery status notification. `returned`: the type of its third part; "" for none. `more`: fields."""
    recipient = recipient or header(sent, "To")
    per_message = [f"Original-Envelope-Id: {envelope_id}"] if envelope_id else []
    fields = [
        f"Final-Recipient: rfc822; {recipient}",
        *([f"Action: {action}"] if action else []),
        *([f"Status: {status}"] if status else []),
        *([f"Diagnostic-Code: {diagnostic}"] if diagnostic else []),
        *more,
    ]
    parts = [
        ("text/plain", "Your message could not be delivered."),
        (
            "message/delivery-status",
            "\r\n".join(["Reporting-MTA: dns; mx.example.net", *per_message, "", *fields, ""]),
        ),
    ]
    if returned:
        text = sent.partition(b"\r\n\r\n")[0] if "headers" in returned else sent
        parts.append((returned, text.decode("latin-1") + "\r\n"))
    head = [
        *([f"Return-Path: {return_path}"] if return_path else []),
        f"Date: {date}",
        "From: Mail Delivery System <MAILER-DAEMON@mx.example.net>",
        f"To: {to}",
        "Subject: Undelivered Mail Returned to Sender",
        *([f"Message-ID: {message_id}"] if message_id else []),
        "Auto-Submitted: auto-replied",
    ]
    return _report(head, "delivery-status", parts)


def feedback_report(sent: bytes, *, to: str, kind: str = "abuse", return_path: str = "") -> bytes:
    """A complaint as a mailbox provider passes it on; `return_path` fills Original-Mail-From."""
    fields = [
        f"Feedback-Type: {kind}",
        "User-Agent: Example-Feedback/1.0",
        "Version: 1",
        *([f"Original-Mail-From: <{return_path}>"] if return_path else []),
        "Arrival-Date: Thu, 1 Jan 2026 00:05:00 +0000",
    ]
    parts = [
        ("text/plain", "This is an email abuse report."),
        ("message/feedback-report", "\r\n".join([*fields, ""])),
        ("message/rfc822", sent.decode("latin-1")),
    ]
    head = [
        "Return-Path: <feedback@mailbox.example.net>",
        "Date: Thu, 1 Jan 2026 00:06:00 +0000",
        "From: <feedback@mailbox.example.net>",
        f"To: {to}",
        "Subject: FW: complaint",
        "Message-ID: <complaint-1@mailbox.example.net>",
    ]
    return _report(head, "feedback-report", parts)


def vacation(sent: bytes, *, to: str, subject: str = "Out of office: undeliverable until Monday") -> bytes:
    """An automatic answer that says of itself that it is one."""
    head = [
        "Return-Path: <>",
        "Date: Thu, 1 Jan 2026 00:01:00 +0000",
        f"From: {header(sent, 'To')}",
        f"To: {to}",
        f"Subject: {subject}",
        f"In-Reply-To: {header(sent, 'Message-ID')}",
        "Message-ID: <vacation-1@example.com>",
        "Auto-Submitted: auto-replied (vacation)",
        "Content-Type: text/plain",
    ]
    return "\r\n".join([*head, "", "I am away. 550 5.1.1 is not what this is.", ""]).encode()


def old_bounce(sent: bytes, *, to: str) -> bytes:
    """What servers without reports write: words, and the message."""
    head = [
        "Return-Path: <>",
        "Date: Thu, 1 Jan 2026 00:02:00 +0000",
        "From: MAILER-DAEMON@old.example.net",
        f"To: {to}",
        "Subject: failure notice",
        "Message-ID: <old-1@old.example.net>",
    ]
    said = (
        f"I wasn't able to deliver your message.\r\n\r\n<{header(sent, 'To')}>:\r\n550 no such user\r\n\r\n"
    )
    return ("\r\n".join([*head, "", said]) + sent.decode("latin-1")).encode("latin-1")


def header(sent: bytes, name: str) -> str:
    return str(BytesHeaderParser().parsebytes(sent).get(name, ""))


def _report(head: Sequence[str], kind: str, parts: Sequence[tuple[str, str]]) -> bytes:
    boundary = "=_report"
    lines = [
        *head,
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type={kind}; boundary="{boundary}"',
        "",
    ]
    for content_type, text in parts:
        lines += [f"--{boundary}", f"Content-Type: {content_type}", "", text]
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode("latin-1")
