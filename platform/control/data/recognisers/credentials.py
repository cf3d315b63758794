"""Recognisers of secrets: keys, tokens and passwords.

Most patterns are those of the package `bc-detect-secrets`, the maintained successor of `detect-secrets`. The package
matches them with Python's `re`, which can backtrack for minutes; here RE2 matches them. Two recognisers are our own:
the package finds a private key only if its block is complete, and it has no pattern for the keys of model services.
"""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from detect_secrets.plugins.artifactory import ArtifactoryDetector
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.basic_auth import BasicAuthDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

from control.data.recognisers.recogniser import Check, Recogniser, Span

_TOKEN_CHARACTERS = frozenset((string.ascii_letters + string.digits + "_-").encode())
_KEY_CHARACTERS = frozenset((string.ascii_letters + string.digits + "+/=\\\r\n").encode())
_MAX_KEY_BYTES = 16 << 10  # the end of a block of a private key is searched within this many bytes
_END_OF_KEY = b"-----END "


def _token(match: Any) -> Span:
    """Accepts the match (or its first group) and the rest of the word: some patterns match only a prefix of a token."""
    begin, end = match.span()
    if match.re.groups and match[1]:
        begin, end = match.span(1)
    return begin, _end_of_run(match.string, end, _TOKEN_CHARACTERS)


def _web_token(match: Any) -> Span | None:
    return match.span() if JwtTokenDetector.is_formally_valid(match[0].decode()) else None


def _service_key(match: Any) -> Span | None:
    """Accepts keys, but not a word with hyphens such as `sk-learn-compatible-estimators`."""
    return _token(match) if any(map(str.isdigit, match[0].decode())) else None


def _private_key(match: Any) -> Span:
    """Accepts the first line of a key with the rest of its block, which may be incomplete."""
    text, (begin, end) = match.string, match.span()
    last_line = text.find(_END_OF_KEY, end, end + _MAX_KEY_BYTES)
    if last_line < 0:
        return begin, begin + len(text[begin : _end_of_run(text, end, _KEY_CHARACTERS)].rstrip())
    closing = text.find(b"-----", last_line + len(_END_OF_KEY), last_line + 64)
    return begin, last_line + len(_END_OF_KEY) if closing < 0 else closing + len(b"-----")


def _end_of_run(text: bytes, position: int, characters: frozenset[int]) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _of(denylist: Sequence[Any], check: Check = _token) -> list[Recogniser]:
    """Args: denylist: the patterns of a detector of the package, which Python's `re` has compiled."""
    return [Recogniser(_pattern(one), check) for one in denylist]


def _pattern(of_package: Any) -> str:
    pattern: str = of_package.pattern
    if of_package.flags & re.VERBOSE:
        pattern = "".join(pattern.split())
    return f"(?i){pattern}" if of_package.flags & re.IGNORECASE else pattern


SECRETS: Mapping[str, Sequence[Recogniser]] = {
    "private_key": [Recogniser(r"-----BEGIN [A-Z0-9 ]{0,20}PRIVATE KEY[A-Z ]{0,6}-----", _private_key)],
    "api_key": [
        Recogniser(
            r"\b(?:sk_live_[A-Za-z0-9]{32}|sk-[\w\-]{20}|hf_[A-Za-z0-9]{30}|gsk_[A-Za-z0-9]{40}|AIza[\w\-]{35})",
            _service_key,
        )
    ],
    "aws_key": _of(AWSKeyDetector.denylist),
    "azure_key": _of(AzureStorageKeyDetector.denylist),
    "github_token": _of(GitHubTokenDetector.denylist),
    "json_web_token": _of(JwtTokenDetector.denylist, _web_token),
    "slack_token": _of(SlackDetector.denylist),
    "stripe_key": _of(StripeDetector.denylist),
    "sendgrid_key": _of(SendGridDetector.denylist),
    "twilio_key": _of(TwilioKeyDetector.denylist),
    "square_secret": _of(SquareOAuthDetector.denylist),
    "mailchimp_key": _of(MailchimpDetector.denylist),
    "npm_token": _of(NpmDetector.denylist),
    "discord_token": _of(DiscordBotTokenDetector.denylist),
    "artifactory_token": _of(ArtifactoryDetector.denylist[:1]),  # RE2 needs too much time for the second pattern
    "password_in_url": _of(BasicAuthDetector.denylist),
}
