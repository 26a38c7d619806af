"""Who may join: loopback, or TLS with certificates, or an explicit word that neither is wanted."""

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from underhood.common.errors import BadInput

RIGHT_WAY = (
    "use tls:// with --tls-ca, --tls-cert and --tls-key "
    "(python -m underhood.sweeps.dask.certificates FOLDER makes them), "
    "or --insecure if everybody on that network may run code here"
)

# Every process of distributed has a server for browsers, which knows no certificates. Ours are on
# loopback and have nothing to show.
HTTP = "127.0.0.1:0"
NOBODY: dict[str, list[str]] = {
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
}


@dataclass(frozen=True)
class Certificates:
    """Three files: the authority whose word we take, our certificate, our key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def given(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def check(self) -> None:
        """Refuse two of three, and files that are not there or hold something else."""
        if not self.given:
            return
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if not path:
                raise BadInput("TLS takes three files: --tls-ca, --tls-cert and --tls-key.")
            if not Path(path).is_file():
                raise BadInput(f"--tls-{name} {path} is no file.")
        assert self.ca and self.cert
        try:
            ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError):
            raise BadInput(f"--tls-ca {self.ca} holds no certificate.") from None
        try:
            ssl.create_default_context().load_cert_chain(self.cert, self.key)
        except (OSError, ValueError):
            raise BadInput(
                f"--tls-cert {self.cert} and --tls-key {self.key} are no certificate with its key."
            ) from None

    def security(self) -> Any:
        """Certificates for every connection, or None where there are none."""
        if not self.given:
            return None
        self.check()
        from distributed.security import Security

        roles = ("client", "worker", "scheduler")
        files = {f"tls_{role}_cert": self.cert for role in roles}
        files |= {f"tls_{role}_key": self.key for role in roles}
        return Security(require_encryption=True, tls_ca_file=self.ca, **files)


def check_address(address: str, *, tls: bool, insecure: bool, said: str = "--address") -> None:
    """Refuse an address that others can reach and that is not protected."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not port:
        raise BadInput(f"{said} {address} is not tcp://HOST:PORT or tls://HOST:PORT.")
    if parts.scheme == "tls" and not tls:
        raise BadInput(f"{said} {address} needs --tls-ca, --tls-cert and --tls-key.")
    if parts.scheme == "tls" or insecure or is_loopback(parts.hostname):
        return
    raise BadInput(f"{said} {address} is neither loopback nor protected: {RIGHT_WAY}.")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, reached by nobody else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
