"""Who may join: loopback, or TLS with certificates, or whoever reaches it with --insecure.

    python -m underhood.sweeps.dask.certificates FOLDER

makes certificates for the machines of one sweep. FOLDER/ca.pem, FOLDER/cert.pem and FOLDER/key.pem
are all that a scheduler, its workers and its clients need. Whoever has them may run code on the
workers: keep the folder to yourself, and copy it only by ways that you trust. The authority's own
key is not kept, so nobody can make more of them.
"""

import contextlib
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
from underhood.common.files import Json

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
NO_DASHBOARD: Json = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
NO_ROUTES: Json = {f"distributed.{name}.http.routes": [] for name in ("worker", "scheduler")}


def require_dask() -> None:
    try:
        import cloudpickle  # noqa: F401
        import cryptography  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        advice = "pip install 'underhood[cluster]'"
        raise BadInput(f"The engine dask needs the extra cluster: {advice}.") from None


@dataclass(frozen=True)
class TLSFiles:
    """Three files: the authority that we trust, our certificate, our key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def given(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def __post_init__(self) -> None:
        """Refuse two of three, and files that are not there or hold something else."""
        if not self.given:
            return
        if not (self.ca and self.cert and self.key):
            raise BadInput("TLS takes three files: --tls-ca, --tls-cert and --tls-key.")
        for name, path in vars(self).items():
            if not Path(path).is_file():
                raise BadInput(f"--tls-{name} {path} is no file.")
        problem = f"--tls-ca {self.ca} holds no certificate."
        try:
            context = ssl.create_default_context(cafile=self.ca)
            files = f"--tls-cert {self.cert} and --tls-key {self.key}"
            problem = f"{files} are not a certificate and its key."
            context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError):
            raise BadInput(problem) from None

    def security(self) -> "distributed.security.Security | None":
        """Return what distributed needs for TLS; None without files."""
        if not self.given:
            return None
        from distributed.security import Security

        roles = ("client", "worker", "scheduler")
        files = {f"tls_{role}_cert": self.cert for role in roles}
        files |= {f"tls_{role}_key": self.key for role in roles}
        return Security(require_encryption=True, tls_ca_file=self.ca, **files)


def run_server(
    parser: ArgumentParser, arguments: list[str], serve: Callable[[Namespace, TLSFiles], None]
) -> int:
    """Serve, with the options that scheduler and worker share, until told to end; return status."""
    # --tls-ca-file is what dask-jobqueue calls the first.
    for names in (("--tls-ca", "--tls-ca-file"), ("--tls-cert",), ("--tls-key",)):
        parser.add_argument(*names, help="a file; give all three, or none")
    trust = "for a network on which you trust everybody"
    parser.add_argument("--insecure", action="store_true", help=trust)
    parser.add_argument("--with-parent", type=int, help="end when this process ends")
    given = parser.parse_args(arguments)
    try:
        tls = TLSFiles(given.tls_ca, given.tls_cert, given.tls_key)
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
    """Refuse an address that others can reach unprotected; the error calls it as `said`."""
    parts, port = address_parts(address), None
    with contextlib.suppress(ValueError):
        port = parts.port
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or not port:
        raise BadInput(f"{said} {address} is not tcp://HOST:PORT or tls://HOST:PORT.")
    if parts.scheme == "tls" and not tls:
        raise BadInput(f"{said} {address} needs --tls-ca, --tls-cert and --tls-key.")
    if parts.scheme != "tls" and not insecure and not is_loopback(parts.hostname):
        raise BadInput(f"{said} {address} is neither loopback nor protected: {RIGHT_WAY}.")


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def certificates_command(arguments: list[str]) -> int:
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
    require_dask()
    from distributed.security import Security

    made = Security.temporary()
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
