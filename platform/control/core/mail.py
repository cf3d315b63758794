"""Sends mails in another thread, so that no response waits for a mail server.

The response time therefore does not reveal whether a mail was sent, that is, whether an account exists.
"""

from concurrent.futures import ThreadPoolExecutor

import structlog
from django.core.mail import EmailMessage
from django.db import transaction

log = structlog.get_logger(__name__)
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mail")


def send_later(message: EmailMessage) -> None:
    """Sends the mail when the current transaction is committed. A mail that cannot be sent leaves a line in the log."""
    transaction.on_commit(lambda: _THREAD.submit(_send, message) and None)


def _send(message: EmailMessage) -> None:
    try:
        message.send()
    except Exception as error:  # an error of the mail server, the network or the name service
        log.error("a mail could not be sent", subject=message.subject, error=str(error))
