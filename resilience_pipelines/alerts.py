"""Telling somebody: webhooks, Slack, e-mail.

What belongs here: the channels that the environment names, and sending one text through one of
them. What does not: when something is worth telling (`upgrades`, `assets.sensors`).

Addresses of webhooks and the password of a mail server are secrets: they are read from the
environment when something is sent, and no message of this module holds one.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import smtplib
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import httpx

from resilience_pipelines.addresses import (
    Destination,
    ForbiddenAddressError,
    find_destination,
    look_up,
)
from resilience_pipelines.errors import InputError, ResilienceError

WEBHOOK: Final = "RESILIENCE_ALERT_WEBHOOK"
"""An address that gets the whole alert as JSON."""
SLACK: Final = "RESILIENCE_ALERT_SLACK"
"""An address of a Slack incoming webhook, or of anything that takes its form."""
EMAIL: Final = "RESILIENCE_ALERT_EMAIL"
"""Addresses that get a mail, separated by commas; needs the mail server too."""
SENDER: Final = "RESILIENCE_ALERT_FROM"
"""The address that mails come from; the mail server's user, or the first receiver, by default."""
SMTP: Final = "RESILIENCE_SMTP"
"""`smtp://user:password@host:587` (with STARTTLS where the server has it) or `smtps://...:465`."""

TIMEOUT_S: Final = 10.0

# At INFO it logs the address of every request.
logging.getLogger("httpx").setLevel(logging.WARNING)


class AlertError(ResilienceError):
    """An alert could not be sent; names the channel, never its address."""


@dataclass(frozen=True)
class Alert:
    """What is told.

    Attributes:
        title: one line.
        lines: what a person should know besides.
        data: everything, ready for JSON.
    """

    title: str
    lines: tuple[str, ...]
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Title and lines as a person reads them."""
        return "\n".join((self.title, *(f"- {line}" for line in self.lines)))


def channels() -> tuple[str, ...]:
    """The channels that the environment names: `webhook`, `slack`, `email`."""
    return tuple(name for name, (variable, _) in _CHANNELS.items() if os.environ.get(variable))


def send(channel: str, alert: Alert) -> None:
    """Send an alert through one channel.

    Raises:
        InputError: the channel's setting is none that can be used.
        AlertError: it did not take the alert.
    """
    variable, deliver = _CHANNELS[channel]
    try:
        deliver(variable, os.environ.get(variable, ""), alert)
    except ResilienceError:
        raise
    except Exception as error:  # noqa: BLE001 - of whatever kind, its message may hold the address
        raise AlertError(
            f"The alert could not be sent through {variable} ({type(error).__name__}).",
            mend="Check the form of its setting; it is tried again.",
        ) from None


def send_all(alerts: Iterable[Alert]) -> list[tuple[str, ResilienceError]]:
    """Send alerts through every channel; returns what was not taken, by channel.

    Raises:
        InputError: the environment names no channel.
    """
    names = channels()
    if not names:
        raise InputError(
            "channels", None, "the environment names none",
            mend=f"Set {WEBHOOK}, {SLACK} or {EMAIL}.",
        )  # fmt: skip
    failed = []
    for alert in alerts:
        for name in names:
            try:
                send(name, alert)
            except ResilienceError as error:
                failed.append((name, error))
    return failed


def _post_alert(variable: str, address: str, alert: Alert) -> None:
    body = {"title": alert.title, "reasons": list(alert.lines), **alert.data}
    _post(variable, address, body)


def _post_slack(variable: str, address: str, alert: Alert) -> None:
    # Slack's own form of emphasis and links can't be made by a label: these three are its syntax.
    text = alert.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    _post(variable, address, {"text": text})


def _post(variable: str, address: str, body: Mapping[str, Any]) -> None:
    try:
        found = _find(variable, address)
        # No redirects: where it goes was decided by whoever set the address.
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
            answer = client.post(
                found.url, json=body, headers=found.headers, extensions=dict(found.extensions)
            )
    except (OSError, httpx.HTTPError) as error:
        raise AlertError(
            f"The address in {variable} did not answer ({type(error).__name__}).",
            mend="Check the address and the way to it; it is tried again.",
        ) from None  # the library's own message holds the address
    if not answer.is_success:
        raise AlertError(
            f"The address in {variable} answered with status {answer.status_code}.",
            mend="Check that the webhook still exists; it is tried again.",
        )


def _find(variable: str, address: str) -> Destination:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            variable, "(not shown)", "it is no http:// or https:// address",
            mend="Give the whole address of the webhook.",
        )  # fmt: skip
    try:
        return find_destination(address)
    except ForbiddenAddressError:
        raise _forbidden(variable) from None


def _forbidden(variable: str) -> InputError:
    return InputError(
        variable, "(not shown)", "it leads to a link-local address, where clouds keep the "
        "credentials of machines, or by a name to this machine itself",
        mend="Give another address; this machine's own as 127.0.0.1 or localhost.",
    )  # fmt: skip


def _mail(variable: str, addresses: str, alert: Alert) -> None:
    server = urlsplit(os.environ.get(SMTP, ""))
    if server.scheme not in ("smtp", "smtps") or not server.hostname:
        raise InputError(
            SMTP, "(not shown)", f"{variable} is set, and this is no smtp:// or smtps:// address",
            mend="Give smtp://user:password@host:587.",
        )  # fmt: skip
    try:
        look_up(server.hostname)
    except ForbiddenAddressError:
        raise _forbidden(SMTP) from None
    except OSError:
        raise AlertError(
            f"The name of the mail server in {SMTP} is not known.",
            mend="Check the server; it is tried again.",
        ) from None
    message = EmailMessage()
    recipients = [part.strip() for part in addresses.split(",") if part.strip()]
    if not recipients:
        raise InputError(
            variable, addresses, "it names no address", mend="Give addresses, with commas between."
        )
    user = unquote(server.username or "")
    message["Subject"] = " ".join(alert.title.split())
    message["From"] = os.environ.get(SENDER) or (user if "@" in user else recipients[0])
    message["To"] = ", ".join(recipients)
    message.set_content(alert.text)
    try:
        with _connect(server.scheme, server.hostname, server.port) as connection:
            if user:
                _require_secret(connection, server.hostname)
                connection.login(user, unquote(server.password or ""))
            connection.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        raise AlertError(
            f"The mail server in {SMTP} did not take the mail ({type(error).__name__}).",
            mend="Check the server, the user and the password; it is tried again.",
        ) from None  # an answer of the server can repeat what was sent to it


def _connect(scheme: str, host: str, port: int | None) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if scheme == "smtps":
        return smtplib.SMTP_SSL(host, port or 465, timeout=TIMEOUT_S, context=context)
    connection = smtplib.SMTP(host, port or 587, timeout=TIMEOUT_S)
    try:
        connection.ehlo()
        if connection.has_extn("starttls"):
            connection.starttls(context=context)
            connection.ehlo()
    except BaseException:
        connection.close()
        raise
    return connection


def _require_secret(connection: smtplib.SMTP, host: str) -> None:
    """See that nobody on the way can read a password."""
    if not isinstance(connection.sock, ssl.SSLSocket) and not _on_loopback(connection):
        raise AlertError(
            f"The mail server in {SMTP} offers no encryption, and a password would go to {host} "
            "in the clear.",
            mend="Use smtps://, or a server with STARTTLS.",
        )


def _on_loopback(connection: smtplib.SMTP) -> bool:
    assert connection.sock is not None
    peer = str(connection.sock.getpeername()[0]).partition("%")[0]
    return ipaddress.ip_address(peer).is_loopback


_CHANNELS: Final[Mapping[str, tuple[str, Callable[[str, str, Alert], None]]]] = {
    "webhook": (WEBHOOK, _post_alert),
    "slack": (SLACK, _post_slack),
    "email": (EMAIL, _mail),
}
