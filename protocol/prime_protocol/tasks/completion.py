"""Where the answer is in a completion. The last one counts, and only what comes after the thinking.

Every function looks at each character a bounded number of times: a completion of a million brackets costs no more than
one of a million letters.
"""

from prime_protocol.constants import ANSWER_CHARS_MAX, COMPLETION_CHARS_MAX

THINK_END = "</think>"
BOXED = "\\boxed{"
FENCE = "```"
PYTHON_FENCES = ("```python", "```py", "```python3")
ANSWER_START, ANSWER_END = "<answer>", "</answer>"
THINKING = ("required", "optional")
"""What a family's `thinking` parameter may be: whether a completion without the closing tag has an answer at all."""


def after_thinking(completion: str, *, required: bool) -> str | None:
    """What comes after the last closing think tag; all of it where the tag is optional and absent."""
    if len(completion) > COMPLETION_CHARS_MAX:
        return None
    _, tag, rest = completion.rpartition(THINK_END)
    return rest if tag or not required else None


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...}, nested braces included. None if there is none or it does not close."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    first = start + len(BOXED)
    end = min(len(text), first + ANSWER_CHARS_MAX)
    depth, place = 1, first
    while place < end:
        character = text[place]
        if character == "\\":
            place += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[first:place].strip()
        place += 1
    return None


def last_program(text: str) -> str | None:
    """The last fenced python block that closes."""
    program: str | None = None
    lines: list[str] | None = None
    for line in text.split("\n"):
        bare = line.strip()
        if lines is None:
            lines = [] if bare.lower() in PYTHON_FENCES else None
        elif bare == FENCE:
            program, lines = "\n".join(lines) + "\n", None
        else:
            lines.append(line)
    return program


def last_tagged(text: str) -> str | None:
    """What stands between the last <answer> and the </answer> after it."""
    _, tag, rest = text.rpartition(ANSWER_START)
    answer, end, _ = rest.partition(ANSWER_END)
    return answer.strip() if tag and end else None
