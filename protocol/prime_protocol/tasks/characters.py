"""What the character-level families share: answers for models whose vocabulary is single characters.

A prompt is `^question>`, the one right completion is the answer and the end mark `$`, nothing before, between or after.
"""

from prime_protocol.tasks.family import Grade, Reason

START, ASK, STOP = "^", ">", "$"
REWARDS = ("exact", "shaped")
SHAPED_MAX = 0.5
PLACES_SHARE, STOPPED_SHARE = 0.9, 0.1
"""What a completion that is not exact can still get: by the share of right places, and for stopping in time."""


def grade_characters(key: str, completion: str, *, shaped: bool) -> Grade:
    """Exact, or with `shaped` a part of the reward for each place that is right."""
    if completion == key + STOP:
        return Grade(1.0, Reason.RIGHT)
    if not shaped:
        return Grade(0.0, Reason.WRONG)
    # Only the places of the answer are looked at, however long the completion is.
    places = sum(given == wanted for given, wanted in zip(completion[: len(key)], key, strict=False))
    stopped = completion.find(STOP, 0, len(key) + 1) == len(key)
    reward = SHAPED_MAX * (PLACES_SHARE * places / len(key) + STOPPED_SHARE * stopped)
    return Grade(reward, Reason.PARTLY if reward > 0 else Reason.WRONG)
