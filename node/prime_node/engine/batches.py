"""One batch of completions from an engine that generates continuously, and the reverse. Pure."""

from collections.abc import Callable, Collection, Iterator, Sequence

from prime_node.engine.interface import Completion, Engine, EngineQueue, GenerateRequest, Sampling


def generate_batch(
    engine: Engine, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool]
) -> Iterator[Completion]:
    """Add all requests to an idle engine and step until they are done. Ends early once `is_wanted` returns False."""
    assert engine.queue == EngineQueue(), "a batch has the engine for itself"
    engine.add(requests, sampling)
    left = {request.number for request in requests}
    try:
        while left and is_wanted():
            for completion in engine.step():
                left.remove(completion.number)
                yield completion
    finally:
        engine.cancel(left)


class BatchQueue:
    """The queue of an engine that can only generate whole batches: each step is a completion of the oldest batch."""

    def __init__(
        self, generate: Callable[[Sequence[GenerateRequest], Sampling, Callable[[], bool]], Iterator[Completion]]
    ) -> None:
        self._generate = generate
        self._batches: list[tuple[Sequence[GenerateRequest], Sampling]] = []
        self._open: Iterator[Completion] | None = None
        self._left: set[int] = set()

    @property
    def state(self) -> EngineQueue:
        waiting = sum(len(requests) for requests, _ in self._batches)
        return EngineQueue(running=len(self._left), waiting=waiting)

    def add(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> None:
        if requests:
            self._batches.append((requests, sampling))

    def step(self) -> list[Completion]:
        if self._open is None:
            requests, sampling = self._batches.pop(0)
            self._left = {request.number for request in requests}
            self._open = self._generate(requests, sampling, lambda: bool(self._left))
        done = next(self._open, None)
        if done is None:
            self._open, self._left = None, set()
            return []
        is_wanted = done.number in self._left
        self._left.discard(done.number)
        if not self._left:
            self._open = None
        return [done] if is_wanted else []

    def cancel(self, numbers: Collection[int]) -> None:
        self._left -= set(numbers)
        if not self._left:
            self._open = None
        kept = [([r for r in requests if r.number not in numbers], sampling) for requests, sampling in self._batches]
        self._batches = [(requests, sampling) for requests, sampling in kept if requests]
