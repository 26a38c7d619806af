"""Who may join: loopback, or TLS with certificates, or whoever reaches it with --insecure.

    python -m underhood.sweeps.dask.certificates FOLDER

makes certificates for the machines of one sweep. FOLDER/ca.pem, FOLDER/cert.pem and FOLDER/key.pem
are all that a scheduler, its workers and its clients need. Whoever has them may run code on the
workers: keep the folder to yourself, and copy it only by ways that you trust. The authority's own
key is not kept, so nobody can make more of them.
"""

import ctypes
import ipaddress
import os
import signal
import ssl
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from underhood.common.errors import BadInput

if TYPE_CHECKING:
    import distributed.security

RIGHT_WAY = (
    "use tls:// with --tls-ca, --tls-cert and --tls-key "
    "(python -m underhood.sweeps.dask.certificates FOLDER makes them), "
    "or --insecure if everybody on that network may run code here"
)
CERTIFICATE_FILES = ("ca.pem", "cert.pem", "key.pem")
PR_SET_PDEATHSIG = 1
# Every process of distributed has a server for browsers, which knows no certificates. Ours are on
# loopback and have nothing to show.
HTTP = "127.0.0.1:0"
SERVERS = ("worker", "scheduler")
NO_ROUTES: dict[str, list[str]] = {f"distributed.{name}.http.routes": [] for name in SERVERS}


@dataclass(frozen=True)
class Certificates:
    """Three files: the authority that we trust, our certificate, our key."""

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
        for name, path in vars(self).items():
            if not path:
                raise BadInput("TLS takes three files: --tls-ca, --tls-cert and --tls-key.")
            if not Path(path).is_file():
                raise BadInput(f"--tls-{name} {path} is no file.")
        assert self.ca and self.cert
        problem = f"--tls-ca {self.ca} holds no certificate."
        try:
            context = ssl.create_default_context(cafile=self.ca)
            files = f"--tls-cert {self.cert} and --tls-key {self.key}"
            problem = f"{files} are not a certificate and its key."
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError):
            raise BadInput(problem) from None

    def security(self) -> "distributed.security.Security | None":
        """Return certificates for every connection, or None where there are none."""
        if not self.given:
            return None
        self.check()
        from distributed.security import Security

        roles = ("client", "worker", "scheduler")
        files = {f"tls_{role}_cert": self.cert for role in roles}
        files |= {f"tls_{role}_key": self.key for role in roles}
        return Security(require_encryption=True, tls_ca_file=self.ca, **files)


def run_server(
    parser: ArgumentParser, arguments: list[str], serve: Callable[[Namespace, Certificates], None]
) -> int:
    """Serve until told to end; return the exit status.

    parser  of a scheduler or a worker; the options that both have are added
    """
    # --tls-ca-file is what dask-jobqueue calls the first.
    for names in (("--tls-ca", "--tls-ca-file"), ("--tls-cert",), ("--tls-key",)):
        parser.add_argument(*names, help="a file; give all three, or none")
    trust = "for a network on which you trust everybody"
    parser.add_argument("--insecure", action="store_true", help=trust)
    parser.add_argument("--with-parent", type=int, help="end when this process ends")
    given = parser.parse_args(arguments)
    try:
        tls = Certificates(given.tls_ca, given.tls_cert, given.tls_key)
        tls.check()
        if given.with_parent is not None:
            end_with_parent(given.with_parent)
        serve(given, tls)
    except (BadInput, OSError) as error:
        print(f"underhood: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except KeyboardInterrupt:
        pass
    return 0


def end_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before we asked.
    if os.getppid() != parent:
        sys.exit(1)


def address_parts(address: str) -> SplitResult:
    """Return scheme, host and port; without a scheme it is tcp."""
    return urlsplit(address if "://" in address else f"tcp://{address}")


def check_address(address: str, *, tls: bool, insecure: bool, said: str = "--address") -> None:
    """Refuse an address that others can reach and that is not protected.

    said  how the error names the address
    """
    parts = address_parts(address)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not port:
        raise BadInput(f"{said} {address} is not tcp://HOST:PORT or tls://HOST:PORT.")
    if parts.scheme == "tls" and not tls:
        raise BadInput(f"{said} {address} needs --tls-ca, --tls-cert and --tls-key.")
    if parts.scheme != "tls" and not insecure and not is_loopback(parts.hostname):
        raise BadInput(f"{said} {address} is neither loopback nor protected: {RIGHT_WAY}.")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def certificates_command(arguments: list[str]) -> int:
    """Make certificates in a folder that has none; return the exit status."""
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise BadInput("usage: python -m underhood.sweeps.dask.certificates FOLDER")
        folder = Path(arguments[0])
        make_certificates(folder)
    except (BadInput, OSError) as error:
        print(f"underhood: {error}", file=sys.stderr)
        return 2
    ca, cert, key = (folder / name for name in CERTIFICATE_FILES)
    print(f"{folder}: {', '.join(CERTIFICATE_FILES)}")
    print(f"--tls-ca {ca} --tls-cert {cert} --tls-key {key}")
    return 0


def make_certificates(folder: Path) -> None:
    """Write an authority, and one certificate and key that it has signed."""
    try:
        from distributed.security import Security

        made = Security.temporary()
    except ImportError:
        raise BadInput("Certificates need the extra: pip install 'underhood[cluster]'.") from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in CERTIFICATE_FILES:
        if (folder / name).exists():
            raise BadInput(f"{folder} already holds {name}; name another folder.")
    texts = (made.tls_ca_file, made.tls_client_cert, made.tls_client_key)
    for name, text in zip(CERTIFICATE_FILES, texts, strict=True):
        handle = os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)


if __name__ == "__main__":
    sys.exit(certificates_command(sys.argv[1:]))
