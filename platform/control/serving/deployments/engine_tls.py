"""TLS between the clients of an engine, which are gateways and supervisors, and an engine on another machine.

Each start of an engine has a key and a certificate of its own, which are made on the engine's machine. The key never
leaves this machine. The certificate gets into the replica's row in the same way as the engine's tokens. Clients trust
this one certificate and no other, so there is no certificate authority. Certificates do not expire: when the engine
ends, its certificate is removed from the row.

A request carries the engine's certificate in an extension of httpx. The transport trusts this certificate only, so that
one client can serve all engines.
"""

import datetime as dt
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

KEY_VARIABLE = "SLIPSTREAM_ENGINE_KEY"  # the engine reads its key and its certificate from this variable
_EXTENSION = "slipstream_certificate"
_NAME = "engine.slipstream.internal"  # in all certificates; only the certificate tells engines apart
# These dates do not depend on the clocks of the machines. The second one means "no end": RFC 5280, 4.1.2.5.
_BEGIN, _END = dt.datetime(2000, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)
_MAX_CONTEXTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKey:
    """Both values are texts in PEM."""

    certificate: str
    key_and_certificate: str  # a secret


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of an engine. Args: certificate: in PEM; empty if the engine does not use TLS."""

    host: str
    port: int
    certificate: str = ""

    def url(self, path: str) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.host}:{self.port}{path}"

    @property
    def extensions(self) -> dict[str, Any]:
        """Returns the extensions of each request to the engine."""
        return {_EXTENSION: self.certificate, "sni_hostname": _NAME} if self.certificate else {}

    @staticmethod
    def certificate_of(extensions: Mapping[str, Any]) -> str:
        """Returns the certificate of the engine to which a request with these extensions is sent."""
        return str(extensions.get(_EXTENSION, ""))


def engine_key() -> EngineKey:
    """Makes a new key and a certificate that can sign no other certificate."""
    key, name = Ed25519PrivateKey.generate(), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
        .public_bytes(Encoding.PEM)
        .decode()
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return EngineKey(certificate=certificate, key_and_certificate=private + certificate)


@lru_cache(maxsize=_MAX_CONTEXTS)
def trusting(certificate: str) -> ssl.SSLContext:
    """Returns a client's context that trusts only this certificate; empty: none.

    Raises: httpx2.ConnectError: the certificate is damaged, so the engine cannot be reached.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # requires a trusted certificate and the expected name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if certificate:
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: it has other characters than ASCII
            raise httpx2.ConnectError(f"the engine's certificate is damaged: {error}") from error
    return context


class EngineTransport(httpx2.BaseTransport):
    """Opens a connection for each request, and keeps none."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        certificate = EngineAddress.certificate_of(request.extensions)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        # The transport need not be closed, because it keeps no connection.
        return httpx2.HTTPTransport(verify=trusting(certificate), limits=limits, trust_env=False).handle_request(
            request
        )
