"""Certificates for the machines of one sweep.

    python -m underhood.sweeps.dask.certificates FOLDER

FOLDER/ca.pem, FOLDER/cert.pem and FOLDER/key.pem are all that a scheduler, its workers and its
clients need. Whoever has them may run code on the workers: keep the folder to yourself, and copy it
only by ways that you trust. The authority's own key is not kept, so nobody can make more of them.
"""

import os
import sys
from pathlib import Path

from underhood.common.errors import BadInput

CERTIFICATE_FILES = ("ca.pem", "cert.pem", "key.pem")


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
