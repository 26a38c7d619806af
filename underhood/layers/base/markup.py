"""HTML that notebooks show: tables of escaped text, and matrices as small pictures.

A picture is a PNG inside the page: blue positive, red negative, white zero, as in the paper's
figures; the largest entry has the full colour.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

POSITIVE, NEGATIVE = np.array([33, 102, 172]), np.array([178, 24, 43])
# Larger matrices are drawn block by block, each by its largest entry. A pixel is shown this large.
MOST_TALL, MOST_WIDE, PIXEL = 48, 96, 4


@dataclass(frozen=True)
class Markup:
    """HTML that is not escaped again."""

    text: str


Content = Markup | str | int | float | bool | None


def as_html(content: Content) -> str:
    """Return content as HTML: text escaped, numbers with six digits."""
    if isinstance(content, Markup):
        return content.text
    if content is None:
        return ""
    number = isinstance(content, float)
    return escape(f"{content:.6g}" if number else str(content))


def html_table(title: str, rows: Iterable[Mapping[str, Content]]) -> Markup:
    """Return rows as a table under a title; the columns are the keys of the first row."""
    rows = list(rows)
    names = list(rows[0]) if rows else []
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{as_html(row.get(n))}</td>" for n in names)
        + "</tr>"
        for row in rows
    )  # fmt: skip
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return Markup(f"<div><strong>{escape(title)}</strong>{table}</div>")


def html_picture(name: str, matrix: np.ndarray) -> Markup:
    """Return a picture of a matrix, or of a vector as one row; nothing if it is empty."""
    matrix = np.atleast_2d(np.asarray(matrix, float))
    if matrix.ndim != 2 or not matrix.size:
        return Markup("")
    blocks = largest_of_blocks(matrix)
    rows, columns = blocks.shape
    data = base64.b64encode(png(colours(blocks))).decode()
    size = f"width:{PIXEL * columns}px;height:{PIXEL * rows}px"
    style = f"{size};max-width:none;image-rendering:pixelated;border:1px solid #bbb"
    source = f"data:image/png;base64,{data}"
    return Markup(f"<img alt='{escape(name, quote=True)}' style='{style}' src='{source}'>")


def largest_of_blocks(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix of at most MOST_TALL × MOST_WIDE with the largest entry of each block."""
    rows, columns = matrix.shape
    tall, wide = -(-rows // MOST_TALL), -(-columns // MOST_WIDE)
    padded = np.zeros((-(-rows // tall) * tall, -(-columns // wide) * wide))
    padded[:rows, :columns] = np.nan_to_num(matrix)
    blocks = padded.reshape(len(padded) // tall, tall, -1, wide).swapaxes(1, 2)
    flat = blocks.reshape(*blocks.shape[:2], -1)
    largest = np.abs(flat).argmax(axis=-1)[..., None]
    return np.take_along_axis(flat, largest, axis=-1)[..., 0]


def colours(matrix: np.ndarray) -> np.ndarray:
    """Return [rows, columns, 3] bytes."""
    largest = np.max(np.abs(matrix)) or 1.0
    strength = (np.abs(matrix) / largest)[..., None]
    full = np.where(matrix[..., None] > 0, POSITIVE, NEGATIVE)
    return np.round(255 + strength * (full - 255)).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """Return an image [rows, columns, 3] of bytes as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    rows, columns, _ = pixels.shape
    # Every row begins with the number of its filter, 0 for none.
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
