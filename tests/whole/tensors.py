"""tensors.py - files of numbers for tests of the program: IDX, safetensors. Standard library only.
"""
import json
import struct


def write_idx(path, kind, shape, data):
    with open(path, "wb") as file:
        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape) + data)


def write_safetensors(path, tensors, shapes):
    """Floats: {name: values}; a name that `shapes` has not is a row."""
    header, data = {}, b""
    for name, values in tensors.items():
        blob = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shapes.get(name, [len(values)]),
                        "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """Of floats: {name: values}, and what the file says of itself."""
    with open(path, "rb") as file:
        blob = file.read()
    start = 8 + struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:start])
    said = header.pop("__metadata__", {})
    return {name: struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f",
                                blob[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
            for name, t in header.items()}, said


def shapes_of(path):
    """{name: shape}, in the order of the file's header."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    return {name: t["shape"] for name, t in header.items()}
