"""`prime-node calibrate merge`: bounds of a run from the measurements of all machines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from prime_node.calibration.files import CalibrationFile
from prime_node.calibration.fit import CalibrationTarget
from prime_node.calibration.noise import PairNoise, collect_noise
from prime_node.calibration.report import COLUMNS, list_noise, list_pair_bounds, render_toml
from prime_node.calibration.table import FittedPair, build_table, combine_pairs, fit_pair, widen_default
from prime_node.cli.context import NodeCliContext
from prime_protocol.constants import CLASSES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.wire.ids import NodeId, parse_address
from prime_runtime.clock import SystemClock


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """All files about one pair of classes."""

    generating: EngineClass
    judging: EngineClass
    files: tuple[CalibrationFile, ...]

    def __str__(self) -> str:
        return f"{self.generating} → {self.judging}"

    def load(self) -> PairNoise:
        """The files may be of several machines of one class."""
        return collect_noise(str(self), chain.from_iterable(file.iterate_measurements() for file in self.files))

    @property
    def hidden(self) -> int:
        reader = self.files[0].header.reader
        assert reader is not None
        return reader.facts.hidden


def merge(context: NodeCliContext) -> int:
    args = context.args
    check_output_path(args.out)
    return merge_files(context, args.files, frozenset(map(parse_address, args.authors or ())))


def merge_files(context: NodeCliContext, paths: Sequence[Path], authors: frozenset[NodeId]) -> int:
    """`authors`: take files of these only; empty: of all."""
    args, say = context.args, context.screen.print_line
    target = CalibrationTarget(
        false_rejects=args.false_rejects, confidence=args.confidence, file_tokens=args.file_tokens
    )
    pairs = collect_pairs([CalibrationFile.open(path) for path in paths], authors)
    fitted: list[FittedPair] = []
    used: list[MeasuredPair] = []
    rows: list[list[str]] = []
    model = pairs[0].files[0].header.model
    for pair in pairs:
        noise = pair.load()
        try:
            known = fit_pair(
                pair.generating, pair.judging, noise, target, precision=model.precision, hidden=pair.hidden
            )
        except LocalError as error:
            say(f"left out: {error}")
            continue
        fitted.append(known)
        used.append(pair)
        rows += list_noise([noise])
    if not fitted:
        raise LocalError("no pair of classes has enough measurements; the lines above say what each needs")
    default = widen_default(combine_pairs(fitted), iterate_noises(used), target)
    table = build_table(default, fitted)
    context.screen.show(context.screen.table(COLUMNS, rows))
    for number, name in enumerate(table.classes, 1):
        say(f"class {number}: {name}")
    context.screen.show(context.screen.table(*list_pair_bounds(default, table)))
    for name in table.classes:
        if not any(each.generating == each.judging == name for each in fitted):
            say(f"{name} was not measured against itself: others that name it are judged by the default there")
    text = render_toml(
        default,
        table,
        target,
        [(str(pair), each.chunks) for pair, each in zip(used, fitted, strict=True)],
        model=f"the model files {model.model_files}",
        at_ms=SystemClock().now_ms(),
    )
    write_file(args.out, text)
    say(f"written to {args.out}: prime-coordinator run create --terms {args.out} takes it")
    return 0


def iterate_noises(pairs: Sequence[MeasuredPair]) -> Iterator[PairNoise]:
    """One at a time: together they may be larger than the memory."""
    return (pair.load() for pair in pairs)


def collect_pairs(files: Sequence[CalibrationFile], authors: frozenset[NodeId]) -> list[MeasuredPair]:
    """LocalError: the files cannot be compared, or are not wanted."""
    found: dict[tuple[EngineClass, EngineClass], list[CalibrationFile]] = {}
    seen: dict[object, Path] = {}
    for file in files:
        header = file.header
        if header.reader is None:
            raise LocalError(f"{file.path} has completions; `merge` takes measurements, as `read` makes them")
        if authors and header.author not in authors:
            raise LocalError(f"{file.path} is signed by {header.author}, who is not among --authors")
        if header.model != files[0].header.model:
            raise LocalError(f"{file.path} and {files[0].path} are for different runs: weights or sampling differ")
        pair = (header.writer.engine_class, header.reader.engine_class)
        # Counted twice, the same rows would look like more confidence than there is.
        again = seen.setdefault((header.author, header.source, pair), file.path)
        if again != file.path:
            raise LocalError(f"{file.path} and {again} measure the same completions with the same engine")
        found.setdefault(pair, []).append(file)
    classes = {name for pair in found for name in pair}
    if len(classes) > CLASSES_MAX:
        raise LocalError(f"the files are of {len(classes)} classes, a run may have {CLASSES_MAX}: leave some out")
    return [MeasuredPair(pair[0], pair[1], tuple(part)) for pair, part in sorted(found.items())]


def check_output_path(path: Path) -> None:
    """Fail before an hour of measuring, not after it."""
    if path.exists():
        raise LocalError(f"{path} exists already; name another file with --out")
    if not path.absolute().parent.is_dir():
        raise LocalError(f"there is no folder {path.absolute().parent} for {path.name}")


def write_file(path: Path, text: str) -> None:
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
