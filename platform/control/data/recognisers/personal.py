"""Recognisers of personal data: e-mail and IP addresses, and the numbers of cards, bank accounts and phones."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import phonenumbers
from stdnum import iban, luhn

from control.data.recognisers.recogniser import Recogniser, Span

_MIN_IBAN = 15  # length of the shortest IBANs, which are Norwegian
_MIN_PHONE = 8
_CARD_GROUP = 4  # digits
_MAX_UTF8 = 4  # bytes of a character


def _address(match: Any) -> Span | None:
    """Accepts IP addresses. Refuses matches within a word, such as `d::` in `std::vector`, and the operator `::`."""
    begin, end = match.span()
    before = match.string[max(0, begin - _MAX_UTF8) : begin].decode(errors="ignore")[-1:]
    after = match.string[end : end + _MAX_UTF8].decode(errors="ignore")[:1]
    if before.isalnum() or after.isalnum() or match[0] == b"::":
        return None
    try:
        ipaddress.ip_address(match[0].decode())
    except ValueError:
        return None
    return begin, end


def _card_number(match: Any) -> Span:
    begin, end = match.span()
    digits = "".join(filter(str.isdigit, match[0].decode()))
    if 13 <= len(digits) <= 19 and luhn.is_valid(digits):
        return begin, end
    return begin + _CARD_GROUP, begin + _CARD_GROUP  # the number may begin after another group of digits


def _account_number(match: Any) -> Span | None:
    """Accepts the longest prefix of the match that is an IBAN, because the match may include part of the next word."""
    text = match[0].decode()
    lengths = range(len(text), _MIN_IBAN - 1, -1)
    return _beginning(match, (length for length in lengths if iban.is_valid(text[:length])))


def _phone_number(match: Any) -> Span | None:
    """Accepts the longest prefix of the match that is a valid phone number, because the match may have more digits."""
    text = match[0].decode()
    ends = (end for end in range(len(text), _MIN_PHONE - 1, -1) if not text[end : end + 1].isdigit())
    return _beginning(match, (end for end in ends if text[end - 1].isdigit() and _is_phone_number(text[:end])))


def _is_phone_number(text: str) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(text))
    except phonenumbers.NumberParseException:
        return False


def _beginning(match: Any, lengths: Iterable[int]) -> Span | None:
    """Returns the span of the match's first N bytes, where N is the first of `lengths`. None: there are no lengths."""
    length = next(iter(lengths), None)
    return None if length is None else (match.start(), match.start() + length)


PERSONAL: Mapping[str, Sequence[Recogniser]] = {
    "email": [Recogniser(r"(?i)[a-z0-9._%+\-]+@[a-z0-9\-]+(?:\.[a-z0-9\-]+)+")],
    "ip_address": [
        Recogniser(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", _address),
        Recogniser(r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:(?:[0-9A-Fa-f.:]*[0-9A-Fa-f:])?", _address),
    ],
    "credit_card": [
        Recogniser(r"\b\d{4}[ \-]?\d{4}[ \-]?\d{4}[ \-]?\d{1,7}\b", _card_number),
        Recogniser(r"\b3[47]\d{2}[ \-]?\d{6}[ \-]?\d{5}\b", _card_number),
    ],
    "iban": [Recogniser(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _account_number)],
    "phone_number": [Recogniser(r"\+\d[\d ().\-/]{6,24}\d", _phone_number)],  # only numbers with a country code
}
