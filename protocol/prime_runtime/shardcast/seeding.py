"""What an origin tells of what it holds. Pure.

The origin's line is the one that every byte must pass, so it should send nothing twice while something has not been
sent once. Children ask only for what they are told is held: shards that were sent already are left out until all were.
Who has got them serves them meanwhile.
"""


def advertise(held: int, sent: int, *, is_origin: bool) -> int:
    """Bits of the shards to name to children, of those held and those sent before."""
    unsent = held & ~sent
    return unsent if is_origin and unsent else held
