"""Ids as distinct types, each with one way to parse and one way to print it; and digests over several fields.

`digest_fields` makes every hash of several fields outside the Merkle tree: a domain and a length before each field, so
that no two statements have the same bytes. `friendly_name` makes a pronounceable name from an address, such as
quiet-amber-otter. It helps people to read; it is not an identity: among a thousand nodes two share a name with a
probability of about 40 %, and anyone can search for a key whose name resembles another. Signatures, and how a NodeId
comes from a key, are in signing.py.
"""

import re
from hashlib import sha256
from typing import NewType, Self

from prime_protocol.constants import ADDRESS_BYTES, DIGEST_BYTES, NAME_CHARS_MAX, TICKER_CHARS_MAX
from prime_protocol.errors import RemoteError

Step = NewType("Step", int)
"""Number of a training step, from 0. Checkpoint s is what step s's rollouts are made with."""

Slot = NewType("Slot", int)
"""Number of a slot inside a step: one task, G samples."""

Sample = NewType("Sample", int)
"""Number of a sample inside a slot, 0 to G-1."""


class FixedBytes(bytes):
    """Bytes of one exact length, printed as 0x and lower-case hex."""

    __slots__ = ()
    SIZE = 0

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != cls.SIZE:
            raise RemoteError(cls.__name__, f"is {len(raw)} bytes, expected {cls.SIZE}")
        return bytes.__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        if not re.fullmatch(rf"0x[0-9a-f]{{{2 * cls.SIZE}}}", text):
            raise RemoteError(cls.__name__, f"must be 0x and {2 * cls.SIZE} lower-case hex digits")
        return cls(bytes.fromhex(text[2:]))

    def __str__(self) -> str:
        return "0x" + self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


class Digest(FixedBytes):
    """A SHA-256 digest."""

    __slots__ = ()
    SIZE = DIGEST_BYTES


class NodeId(FixedBytes):
    """An Ethereum address: the identity of a node, an owner, a trainer or a coordinator."""

    __slots__ = ()
    SIZE = ADDRESS_BYTES


def checksum_address(node: NodeId) -> str:
    """The address with the checksum capitals of EIP-55, for people."""
    import sha3  # here: every --help imports this module

    text = node.hex()
    marks = sha3.keccak_256(text.encode()).hexdigest()
    return "0x" + "".join(c.upper() if int(m, 16) >= 8 else c for c, m in zip(text, marks, strict=False))


def parse_address(text: str) -> NodeId:
    """An address as a person writes it: in lower case, or with the checksum capitals that wallets show. `NodeId.parse`
    accepts the lower-case form only, which is the one in messages."""
    found = NodeId.parse(text.lower())
    if text not in (str(found), checksum_address(found)):
        raise RemoteError("NodeId", "fails the checksum of its capitals: is every digit right?")
    return found


class Name(str):
    """A network or run name: safe in a path, a URL and a terminal."""

    __slots__ = ()
    PATTERN = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{NAME_CHARS_MAX - 2}}}[a-z0-9])?")
    FORM = f"1 to {NAME_CHARS_MAX} characters of a-z, 0-9 and inner dashes"

    def __new__(cls, text: str) -> Self:
        if not cls.PATTERN.fullmatch(text):
            raise RemoteError(cls.__name__, f"must be {cls.FORM}")
        return super().__new__(cls, text)


class NetworkId(Name):
    """Which network an envelope is meant for. Main, test and dev networks never share one."""

    __slots__ = ()


class RunId(Name):
    """Which training run."""

    __slots__ = ()


class Ticker(Name):
    """What a network calls its unit of value. "Tokens" are always the model's."""

    __slots__ = ()
    PATTERN = re.compile(rf"[A-Z0-9]{{1,{TICKER_CHARS_MAX}}}")
    FORM = f"1 to {TICKER_CHARS_MAX} characters of A-Z and 0-9"


DEFAULT_TICKER = Ticker("PRIME")


DIGEST_DOMAIN_PREFIX = "prime-swarm/"


def hash_bytes(data: bytes) -> Digest:
    """SHA-256 of bytes that are one thing already. Its length needs no check, and it is called for every message."""
    return bytes.__new__(Digest, sha256(data).digest())


def frame_fields(domain: str, *fields: bytes) -> bytes:
    """The domain, then the fields, each behind its length as 4 bytes big-endian."""
    framed = bytearray()
    for field in (f"{DIGEST_DOMAIN_PREFIX}{domain}".encode(), *fields):
        framed += len(field).to_bytes(4, "big") + field
    return bytes(framed)


def digest_fields(domain: str, *fields: bytes) -> Digest:
    """SHA-256 of the framed fields."""
    return hash_bytes(frame_fields(domain, *fields))


FRIENDLY_NAME_PREFIX = b"prime-swarm name\n"


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _split_words(
    "able acute agile airy alert amused apt awake "
    "bold brave breezy brief bright brisk busy calm "
    "candid cheery chief civil clear clever close cosy "
    "crisp curious dapper daring deep deft direct eager "
    "early easy even exact fair famous fancy fast "
    "fine firm first fleet fluent fond frank free "
    "fresh full gentle giant glad good grand great "
    "handy happy hardy hearty honest humble ideal jolly "
    "joyful keen kind large light little lively long "
    "loud loyal lucky mellow merry mighty mild modest "
    "neat nimble noble normal novel open patient playful "
    "plucky polite prime prompt proud pure quick quiet "
    "rapid rare ready regal rich ripe robust rustic "
    "safe sane secret serene sharp shy silent simple "
    "sleek slow smooth snug sober solid spry stable "
    "steady still stout strong sunny sweet swift tidy"
)

COLOURS = _split_words(
    "almond amber apricot aqua ash azure beige birch "
    "black blue brass bronze brown cedar cherry chestnut "
    "cobalt copper coral cream crimson cyan ebony emerald "
    "fawn flint forest garnet ginger gold granite green "
    "grey hazel honey indigo iron ivory jade lemon "
    "lilac lime linen maple maroon mint moss navy "
    "ochre olive onyx opal orange pearl pine pink "
    "plum purple red rose ruby sage silver teal"
)

ANIMALS = _split_words(
    "adder albatross alpaca ant antelope badger bat bear "
    "beaver bee beetle bison boar bongo buffalo camel "
    "canary carp cat cheetah chough cobra cod condor "
    "coot coyote crab crane cricket crow cuckoo curlew "
    "deer dingo dipper dog dolphin donkey dove dragonfly "
    "duck dunlin eagle eel egret eland elk emu "
    "falcon ferret finch firefly fox frog gannet gazelle "
    "gecko gibbon goat goose grouse gull hare harrier "
    "hawk hen heron heifer hoopoe hornet horse hyena "
    "ibex ibis iguana impala jackal jackdaw jaguar jay "
    "kestrel kite kiwi koala lamb lark lemur leopard "
    "linnet lion lizard llama lobster lynx magpie mallard "
    "marlin marten merlin mink mole moose moth mouse "
    "newt ocelot orca oriole osprey otter owl panda "
    "perch pika plover puffin puma quail rabbit raven "
    "robin salmon seal shrew stork swan tapir wren"
)

assert all(len(words) == len(set(words)) == size for words, size in ((ADJECTIVES, 128), (COLOURS, 64), (ANIMALS, 128)))


def friendly_name(node: NodeId) -> str:
    """One of 2^20 names, each as likely as the others."""
    number = int.from_bytes(sha256(FRIENDLY_NAME_PREFIX + node).digest()[:8], "big")
    words = []
    for choices in (ADJECTIVES, COLOURS, ANIMALS):
        number, place = divmod(number, len(choices))
        words.append(choices[place])
    return "-".join(words)
