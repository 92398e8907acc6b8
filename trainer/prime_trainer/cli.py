"""`prime-trainer`: the command that owns the weights. It parses, then imports, then runs.

Exit codes: 0 done, 1 refused (the text says what to do), 2 wrong command line, 3 the weights do not match.
"""

import argparse
import sys
from pathlib import Path


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prime-trainer", description="Learn from verified rollouts, publish weights.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    weights = commands.add_parser("weights", help="name, compare and patch checkpoints of safetensors files")
    actions = weights.add_subparsers(dest="action", required=True, metavar="ACTION")
    root = actions.add_parser("root", help="print the root that names a checkpoint's weights")
    root.add_argument("checkpoint", type=Path, help="a safetensors file, or a folder of them")
    diff = actions.add_parser("diff", help="write the lossless delta from one checkpoint to another")
    diff.add_argument("old", type=Path)
    diff.add_argument("new", type=Path)
    diff.add_argument("--out", type=Path, required=True, help="folder for the delta and its manifest")
    patch = actions.add_parser("patch", help="apply a delta to a copy of its base, and prove the result")
    patch.add_argument("base", type=Path)
    patch.add_argument("delta", type=Path, help="folder written by `diff`")
    patch.add_argument("--out", type=Path, required=True, help="where the patched checkpoint goes")
    for action in (root, diff, patch):
        action.add_argument("--run", default="local", help="name of the run in the manifests (default: local)")
        action.add_argument("--step", type=int, default=0, help="step of the (old) checkpoint (default: 0)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    from prime_protocol.errors import LocalError, RemoteError

    try:
        return run_weights(args)
    except LocalError as error:
        print(f"prime-trainer: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prime-trainer: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except RemoteError as error:
        print(f"prime-trainer: refused: {error}", file=sys.stderr)
        return 3


def run_weights(args: argparse.Namespace) -> int:
    from prime_protocol.ids import RunId, Step
    from prime_trainer import weights

    run, step = RunId(args.run), Step(args.step)
    if args.action == "root":
        print(weights.open_checkpoint(args.checkpoint, run, step).manifest.root)
    elif args.action == "diff":
        old, new = (weights.open_checkpoint(path, run, step) for path in (args.old, args.new))
        manifest = weights.write_delta(old, new, Step(step + 1), args.out)
        share = manifest.transport_bytes / new.manifest.transport_bytes
        print(f"{manifest.transport_bytes} bytes, {share:.2%} of the full checkpoint\nroot {manifest.root}")
    else:
        print(f"root {weights.patch(args.base, args.delta, args.out, run, step).root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
