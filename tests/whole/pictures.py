"""pictures.py - writes PNG files of every kind that a data set may have, and some that it may not.
Standard library only.
"""
import struct
import zlib


def chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def png(pixels, width, bits=8, color=0, palette=b"", interlaced=False, more=b""):
    """The file of rows of bytes; `color` as in PNG's header. Rows take the five filters in turn
    where they are of whole bytes."""
    height, step = len(pixels), {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color] * max(bits // 8, 1)

    def filtered(rows):
        before, out = None, bytearray()
        for number, row in enumerate(rows):
            before = before if before is not None and len(before) == len(row) else bytes(len(row))
            kind = number % 5 if bits == 8 else 0
            out.append(kind)
            for i, value in enumerate(row):
                left = row[i - step] if i >= step else 0
                up, corner = before[i], before[i - step] if i >= step else 0
                near = min((abs(up - corner), 0, left), (abs(left - corner), 1, up),
                           (abs(left + up - 2 * corner), 2, corner))[2]
                taken = (0, left, up, (left + up) // 2, near)[kind]
                out.append((value - taken) & 255)
            before = row
        return bytes(out)

    data = b""
    if interlaced:
        for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                             (1, 0, 2, 2), (0, 1, 1, 2)):
            rows = [b"".join(row[i * step:i * step + step] for i in range(x, width, dx))
                    for row in pixels[y::dy]]
            data += filtered([row for row in rows if row])
    else:
        data = filtered(pixels)
    head = struct.pack(">2I5B", width, height, bits, color, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more +
            (chunk(b"PLTE", palette) if palette else b"") + chunk(b"IDAT", zlib.compress(data)) +
            chunk(b"IEND", b""))


def rows_of(data, width):
    return [data[i:i + width] for i in range(0, len(data), width)]
