"""The command `prime-trainer plan`."""

import argparse
from typing import Any


def add_plan(commands: Any) -> None:
    text = "plan the memory of training a model on GPUs that need not be there; exit code 5 if it does not fit"
    plan = commands.add_parser("plan", help=text, description=text)
    plan.add_argument("model", help="a model folder, of which only config.json is read, or a known name like QwQ-32B")
    plan.add_argument("--gpus", type=int, default=8, help="ranks, one per GPU (default: 8)")
    plan.add_argument("--memory", default="80GB", help="memory of each GPU (default: 80GB)")
    plan.add_argument("--tokens", type=int, default=16_384, help="tokens of the longest pass (default: 16384)")
    plan.add_argument("--replicas", type=int, default=1, help="copies of the sharded model (default: 1)")
    plan.add_argument("--context", type=int, default=1, help="ranks that compute a pack together (default: 1)")
    plan.add_argument("--precision", choices=("float32", "bfloat16"), default="bfloat16")
    plan.add_argument("--head-precision", choices=("float32", "bfloat16"), help="default: that of the model")
    plan.add_argument("--moments", choices=("float32", "bfloat16", "host"), default="float32")
    plan.add_argument("--no-gradient-checkpointing", action="store_true", help="store all activations")
    plan.add_argument("--offload-activations", action="store_true", help="store activations on the host")
    plan.add_argument("--kl", action="store_true", help="with a second model for the KL term")
    plan.add_argument("--json", action="store_true", help="print JSON")


def judge_plan(args: argparse.Namespace) -> tuple[str, bool]:
    """What to print, and whether it fits."""
    from prime_protocol.errors import LocalError
    from prime_protocol.proofs.tolerance import Precision
    from prime_runtime.settings.units import parse_amount
    from prime_trainer.config import MomentStorage

    try:
        memory = int(parse_amount(args.memory, "bytes"))
    except ValueError as error:
        raise LocalError(f"--memory {error}") from None
    if min(args.gpus, args.replicas, args.context) < 1 or args.tokens < 2:
        raise LocalError("--gpus, --replicas and --context are 1 at least, --tokens 2")
    from prime_trainer import planning

    wishes = planning.MemoryWishes(
        ranks=args.gpus,
        tokens=args.tokens,
        replicas=args.replicas,
        precision=Precision(args.precision),
        head_precision=args.head_precision and Precision(args.head_precision),
        gradient_checkpointing=not args.no_gradient_checkpointing,
        offload_activations=args.offload_activations,
        moments=MomentStorage(args.moments),
        context=args.context,
        has_reference=args.kl,
    )
    verdict = planning.judge_memory(planning.open_config(args.model), wishes, memory)
    return verdict.render_json() if args.json else planning.render_verdict(verdict), verdict.fits
