"""A tokenizer process that misbehaves: run as `python fake_tokenizer.py BEHAVIOUR`. It reads its file honestly."""

import os
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

from prime_protocol.wire.codec import decode, encode
from prime_runtime.tokenizer_process import TokenizerJob, TokenizerReply, read_frame, write_frame


def reply(number: int, tokens: tuple[bytes, ...] = (), texts: tuple[bytes, ...] = ()) -> bytes:
    return encode(TokenizerReply(number=number, tokens=tokens, texts=texts, problem=b"", is_last=False))


def kill_self(job: TokenizerJob, out: BinaryIO) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def send_half(job: TokenizerJob, out: BinaryIO) -> None:
    body = reply(job.number, tokens=(b"\0" * 400,))
    out.write(len(body).to_bytes(4, "big") + body[:200])


def send_twice(job: TokenizerJob, out: BinaryIO) -> None:
    body = reply(job.number, tokens=(b"\1\0\0\0",) * len(job.texts))
    write_frame(out, body)
    write_frame(out, body)


def wait_for_ever(job: TokenizerJob, out: BinaryIO) -> None:
    signal.pause()


BEHAVIOURS: dict[str, Callable[[TokenizerJob, BinaryIO], object]] = {
    "dies": kill_self,
    "exits": lambda job, out: sys.exit(3),
    "half": send_half,
    "twice": send_twice,
    "silent": wait_for_ever,
    "endless": lambda job, out: out.write(b"\xff" * 2**16),
    "noise": lambda job, out: write_frame(out, bytes(range(64))),
    "empty": lambda job, out: write_frame(out, b""),
    "other-number": lambda job, out: write_frame(out, reply(job.number + 1, tokens=(b"\1\0\0\0",))),
    "too-few": lambda job, out: write_frame(out, reply(job.number)),
    "too-many": lambda job, out: write_frame(out, reply(job.number, tokens=(b"\1\0\0\0",) * 2)),
    "odd-tokens": lambda job, out: write_frame(out, reply(job.number, tokens=(b"123",))),
    "not-utf8": lambda job, out: write_frame(out, reply(job.number, texts=(b"\xff",))),
}


def main(behaviour: str) -> int:
    source, out = sys.stdin.buffer, sys.stdout.buffer
    if behaviour == "deaf":
        signal.pause()
    read_frame(source)
    write_frame(out, reply(0))
    while (body := read_frame(source)) is not None:
        BEHAVIOURS[behaviour](decode(TokenizerJob, body, bytes_max=2**28), out)
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
