"""Who may join: loopback, or TLS with certificates, or an explicit word that neither is wanted."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from underhood.layers import BadInput

RIGHT_WAY = (
    "give --address tls://HOST:PORT with --tls-ca, --tls-cert and --tls-key, or --insecure if "
    "everybody on that network may run code here"
)


def security_of(ca: str | None, cert: str | None, key: str | None) -> Any:
    """Certificates for every connection, or None where there are none."""
    given = [one for one in (ca, cert, key) if one]
    if not given:
        return None
    if len(given) < 3:
        raise BadInput("TLS takes three files: --tls-ca, --tls-cert and --tls-key.")
    from distributed.security import Security

    files = dict.fromkeys(("tls_client_cert", "tls_worker_cert", "tls_scheduler_cert"), cert)
    keys = dict.fromkeys(("tls_client_key", "tls_worker_key", "tls_scheduler_key"), key)
    return Security(require_encryption=True, tls_ca_file=ca, **files, **keys)


def check_address(address: str, *, tls: bool, insecure: bool) -> None:
    """Refuse an address that others can reach and that is not protected."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not parts.port:
        raise BadInput(f"--address {address} is not tcp://HOST:PORT or tls://HOST:PORT.")
    if parts.scheme == "tls" and not tls:
        raise BadInput(f"--address {address} needs --tls-ca, --tls-cert and --tls-key.")
    if parts.scheme == "tls" or insecure or is_loopback(parts.hostname):
        return
    raise BadInput(f"--address {address} is neither loopback nor protected: {RIGHT_WAY}.")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
