"""A name that people can say, made from an address: quiet-amber-otter. Pure, and the same everywhere.

It is a help for the eye, not an identity: among a thousand nodes two share one with odds of about two in five, and
anybody can look for a key whose name is like another's. What counts is the address.
"""

from hashlib import sha256

from prime_protocol.ids import NodeId

PREFIX = b"prime-swarm name\n"


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MOODS = _split(
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

COLOURS = _split(
    "almond amber apricot aqua ash azure beige birch "
    "black blue brass bronze brown cedar cherry chestnut "
    "cobalt copper coral cream crimson cyan ebony emerald "
    "fawn flint forest garnet ginger gold granite green "
    "grey hazel honey indigo iron ivory jade lemon "
    "lilac lime linen maple maroon mint moss navy "
    "ochre olive onyx opal orange pearl pine pink "
    "plum purple red rose ruby sage silver teal"
)

ANIMALS = _split(
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

assert all(len(words) == len(set(words)) == size for words, size in ((MOODS, 128), (COLOURS, 64), (ANIMALS, 128)))


def friendly_name(node: NodeId) -> str:
    """One of 2^20 names, each as likely as the others."""
    number = int.from_bytes(sha256(PREFIX + node).digest()[:8], "big")
    words = []
    for choices in (MOODS, COLOURS, ANIMALS):
        number, place = divmod(number, len(choices))
        words.append(choices[place])
    return "-".join(words)
