"""Certificates for the machines of one sweep.

    python -m underhood.sweeps.dask.certificates FOLDER

FOLDER/ca.pem, FOLDER/cert.pem and FOLDER/key.pem are all that a scheduler, its workers and its
clients need. Whoever has them may run code on the workers: keep the folder to yourself, and copy it
by a way that you trust. The authority's own key is not kept, so nobody can make more of them.
"""

import os
import sys
from pathlib import Path

from underhood.common.errors import BadInput

FILES = ("ca.pem", "cert.pem", "key.pem")


def main(arguments: list[str]) -> int:
    """Make them, in a folder that has none."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(
            "underhood: usage: python -m underhood.sweeps.dask.certificates FOLDER", file=sys.stderr
        )
        return 2
    folder = Path(arguments[0])
    try:
        make(folder)
    except (BadInput, OSError) as error:
        print(f"underhood: {error}", file=sys.stderr)
        return 2
    print(
        f"{folder}: {', '.join(FILES)}\n"
        f"--tls-ca {folder / FILES[0]} --tls-cert {folder / FILES[1]} --tls-key {folder / FILES[2]}"
    )
    return 0


def make(folder: Path) -> None:
    """An authority, and one certificate and key that it has signed."""
    try:
        from distributed.security import Security

        made = Security.temporary()
    except ImportError:
        raise BadInput("Certificates need the extra: pip install 'underhood[cluster]'.") from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = [name for name in FILES if (folder / name).exists()]
    if held:
        raise BadInput(f"{folder} holds {held[0]} already; name another folder.")
    texts = (made.tls_ca_file, made.tls_client_cert, made.tls_client_key)
    for name, text in zip(FILES, texts, strict=True):
        with os.fdopen(
            os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w"
        ) as f:
            f.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
