"""Write tests/vectors/codec.json: frames of one message type, accepted and refused. Standard library only.

python tests/oracle/make_codec_vectors.py
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from plain_msgpack import Raw, message, pack

VECTORS = Path(__file__).parents[1] / "vectors" / "codec.json"
TYPE = {
    "colour": "one of red, blue",
    "count": "integer, 0 to 1000",
    "data": "bytes, 0 to 4",
    "digest": "32 bytes",
    "is_on": "boolean",
    "maybe": "integer or null",
    "numbers": "list of integers",
    "perhaps": "null or a map of a: integer but 13, b: float",
    "ratio": "float, 0 to 1",
    "run": "a run name",
    "step": "a step number",
    "text": "string, 0 to 8 characters",
    "z": "list of 0 to 3 maps of a: integer but 13, b: float",
}
HONEST = {
    "colour": "red",
    "count": 5,
    "data": b"\x01",
    "digest": bytes(32),
    "is_on": True,
    "maybe": None,
    "numbers": [],
    "perhaps": None,
    "ratio": 0.5,
    "run": "run-1",
    "step": 0,
    "text": "hello",
    "z": [],
}
EDGES = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
EDGES += [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)]


def accepted(why, **changed):
    value = HONEST | changed
    shown = {name: item.hex() if isinstance(item, bytes) else item for name, item in value.items()}
    return {"why": why, "value": shown, "frame": message(**value).hex()}


def refused(why, field, frame=None, **changed):
    return {"why": why, "field": field, "frame": (frame or message(**(HONEST | changed))).hex()}


def raw(text):
    return Raw(bytes.fromhex(text))


def reordered():
    names = sorted(HONEST)
    names[0], names[1] = names[1], names[0]
    return pack({name: HONEST[name] for name in names})


def repeated():
    first, second, _third, *rest = [pack(name) + pack(HONEST[name]) for name in sorted(HONEST)]
    return bytes([0x80 + len(HONEST)]) + b"".join([first, second, second, *rest])


def get_accepted():
    return [
        accepted("the plain example"),
        accepted("every width of an integer", numbers=EDGES),
        accepted("the largest of each bound", count=1000, ratio=1.0, data=b"\xff" * 4, text="12345678"),
        accepted("letters of one to four bytes", text="aé漢🜂"),
        accepted("messages inside", perhaps={"a": 1, "b": -0.0}, z=[{"a": -1, "b": 1e300}, {"a": 2, "b": 5e-324}]),
        accepted("the highest step", step=2**63 - 1, maybe=2**64 - 1),
        accepted("a list with a 16-bit length", numbers=list(range(300))),
    ]


def get_refused():
    inner = {"a": 1, "b": 0.0}
    return [
        refused("5 in two bytes", "Sample.count", count=raw("cc05")),
        refused("5 in nine bytes", "Sample.count", count=raw("cf0000000000000005")),
        refused("a signed form of a positive number", "Sample.count", count=raw("d005")),
        refused("float32", "Sample.ratio", ratio=raw("ca3f000000")),
        refused("an integer for a float", "Sample.ratio", ratio=0),
        refused("NaN", "Sample.ratio", ratio=raw("cb7ff8000000000000")),
        refused("infinity", "Sample.ratio", ratio=raw("cb7ff0000000000000")),
        refused("a boolean for an integer", "Sample.count", count=True),
        refused("a float for an integer", "Sample.count", count=5.0),
        refused("out of bounds", "Sample.count", count=1001),
        refused("a negative step", "Sample.step", step=-1),
        refused("a string for bytes", "Sample.data", data="\x01"),
        refused("bytes for a string", "Sample.text", text=b"hello"),
        refused("a string with a longer head than needed", "Sample.text", text=raw("d9026869")),
        refused("bytes with a longer head than needed", "Sample.data", data=raw("c5000101")),
        refused("a list with a longer head than needed", "Sample.z", z=raw("dc0000")),
        refused("a map with a longer head than needed", "Sample", b"\xde\x00\x0d" + message(**HONEST)[1:]),
        refused("invalid UTF-8", "Sample.text", text=raw("a2fffe")),
        refused("an encoded surrogate", "Sample.text", text=raw("a3eda080")),
        refused("a control character", "Sample.text", text="a\nb"),
        refused("a direction override", "Sample.text", text="a\u202eb"),
        refused("a zero-width space", "Sample.text", text="a\u200bb"),
        refused("too many characters", "Sample.text", text="123456789"),
        refused("a digest of 31 bytes", "Sample.digest", digest=bytes(31)),
        refused("no name", "Sample.run", run="Run_1"),
        refused("no member", "Sample.colour", colour="green"),
        refused("a timestamp", "Sample.step", step=raw("d6ff00000001")),
        refused("an extension", "Sample.data", data=raw("d40501")),
        refused("null where none may be", "Sample.count", count=None),
        refused("too many items", "Sample.z", z=[inner] * 4),
        refused("a rule of the inner message", "Sample.z[1].a", z=[inner, {"a": 13, "b": 0.0}]),
        refused("deep inside, 1 in two bytes", "Sample.z[0].a", z=[{"a": raw("cc01"), "b": 0.0}]),
        refused("deep inside, fields not sorted", "Sample.z[0].b", z=[{"b": 0.0, "a": 1}]),
        refused("fields not sorted", "Sample.count", reordered()),
        refused("a field twice", "Sample.count", repeated()),
        refused("a field missing", "Sample.z", message(**{name: HONEST[name] for name in HONEST if name != "z"})),
        refused("a field too many", "Sample", message(**HONEST, zz=1)),
        refused("trailing bytes", "Sample", message(**HONEST) + b"\x00"),
        refused("cut short", "Sample.z", message(**HONEST)[:-1]),
        refused("a list claimed to be long", "Sample.numbers", numbers=raw("ddffffffff")),
        refused("not a map", "Sample", b"\x90"),
    ]


def main():
    vectors = {
        "made_by": "tests/oracle/make_codec_vectors.py, from the standard library",
        "type": TYPE,
        "bytes": "hex everywhere",
        "accepted": get_accepted(),
        "refused": get_refused(),
    }
    VECTORS.write_text(json.dumps(vectors, indent=1, sort_keys=False) + "\n")


if __name__ == "__main__":
    main()
