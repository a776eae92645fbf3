"""One page of PDF with the standard library: enough for an invoice, and some honest work for a processor."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

SEAL_PIXELS = 120


def seal(seed: int) -> bytes:
    """A guilloche like those on banknotes, different for every seed: grey values, row by row.

    Pure Python on every pixel, some tens of milliseconds: the CPU-bound part of an invoice.
    """
    waves = [(1 + (seed >> shift) % 7) * math.pi / 16 for shift in (0, 3, 6)]
    half = SEAL_PIXELS / 2
    grey = bytearray()
    for row in range(SEAL_PIXELS):
        for column in range(SEAL_PIXELS):
            radius = math.hypot(row - half, column - half)
            angle = math.atan2(row - half, column - half)
            light = sum(math.sin(radius * wave + angle * (index + 3)) for index, wave in enumerate(waves))
            grey.append(255 if radius > half else int(190 + 20 * light))
    return bytes(grey)


def page(lines: Sequence[str], image: bytes) -> bytes:
    """A PDF of one A4 page: `lines` from the top, and a square grey image of SEAL_PIXELS in the corner."""
    text = b"".join(b"(" + _escaped(line) + b") Tj T*\n" for line in lines)
    content = b"q 96 0 0 96 460 700 cm /Seal Do Q\nBT /Text 12 Tf 16 TL 56 770 Td\n" + text + b"ET\n"
    pixels = f"/Width {SEAL_PIXELS} /Height {SEAL_PIXELS} /ColorSpace /DeviceGray /BitsPerComponent 8"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 6 0 R"
        b" /Resources << /Font << /Text 4 0 R >> /XObject << /Seal 5 0 R >> >> >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        _stream(image, f"/Type /XObject /Subtype /Image {pixels}"),
        _stream(content),
    ]
    document = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(document)
    document += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    document += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    document += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(document)


def _stream(data: bytes, entries: str = "") -> bytes:
    packed = zlib.compress(data)
    head = f"<< {entries} /Filter /FlateDecode /Length {len(packed)} >>"
    return head.encode() + b"\nstream\n" + packed + b"\nendstream"


def _escaped(line: str) -> bytes:
    latin = line.encode("cp1252", errors="replace")
    return latin.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
