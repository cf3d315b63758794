"""The server's TLS context, from a private key and a certificate in PEM."""

import ssl
import tempfile


def server_context(key_and_certificate: str) -> ssl.SSLContext:
    """Raises: ssl.SSLError: the text is not a key with its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile("w") as file:  # ssl reads files only; nobody else can read this one
        file.write(key_and_certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context
