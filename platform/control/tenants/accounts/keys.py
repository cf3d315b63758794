"""The format of an API key: `sk_live_`, an id of 8 characters, a secret of 30 characters, a checksum of 6 characters.

The checksum (CRC-32 in base 62) lets secret scanners and this service detect mistyped or invented keys without a query.
The secret has 30 * log2(62) = 178 random bits, so a plain SHA-256 of it is as safe as a slow hash.
"""

import hashlib
import secrets
import string
import zlib
from dataclasses import dataclass, field

KEY_META = "SLIPSTREAM_API_KEY"  # name in `HttpRequest.META` of the `ApiKey` of an authenticated request
PREFIX = "sk_live_"
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
ID_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 8, 30, 6


class MalformedKey(ValueError):
    """The text is not an API key: its prefix, length, characters or checksum are wrong."""


@dataclass(frozen=True, slots=True)
class Token:
    id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        body = f"{self.id}{self.secret}"
        return f"{PREFIX}{body}{checksum(body)}"

    @property
    def secret_sha256(self) -> str:
        return hashlib.sha256(self.secret.encode()).hexdigest()


def new_token() -> Token:
    def draw(length: int) -> str:
        return "".join(secrets.choice(ALPHABET) for _ in range(length))

    return Token(id=draw(ID_LENGTH), secret=draw(SECRET_LENGTH))


def parse_token(text: str) -> Token:
    """Raises: MalformedKey."""
    body, given_checksum = text[len(PREFIX) : -CHECKSUM_LENGTH], text[-CHECKSUM_LENGTH:]
    if not text.startswith(PREFIX) or len(body) != ID_LENGTH + SECRET_LENGTH:
        raise MalformedKey("a key must consist of sk_live_ and 44 characters")
    if not set(body) <= set(ALPHABET) or checksum(body) != given_checksum:
        raise MalformedKey("the key's checksum is wrong")
    return Token(id=body[:ID_LENGTH], secret=body[ID_LENGTH:])


def checksum(body: str) -> str:
    value, digits = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):  # 62**6 > 2**32: six digits always suffice
        value, digit = divmod(value, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits
