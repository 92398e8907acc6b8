"""The cheats by name, each as module:class, because listing the names must not import numpy or torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prime_lab.cheats.engines import Cheat
    from prime_node.engine.interface import Engine

TOKENS = "prime_lab.cheats.engines"
MODELS = "prime_lab.cheats.models"
PROOFS = "prime_lab.cheats.proof_forgery"
PROOF_CHEATS: dict[str, str] = {
    "constant-proof": f"{PROOFS}:ConstantProof",
    "dressed-constant-proof": f"{PROOFS}:DressedConstantProof",
    "learned-proof": f"{PROOFS}:LearnedProof",
    "low-degree-proof": f"{PROOFS}:LowDegreeProof",
    "replayed-proof": f"{PROOFS}:ReplayedProof",
    "swapped-chunks": f"{PROOFS}:SwappedChunks",
}
"""Their node must not check its own proofs either."""
CHEATS: dict[str, str] = {
    "answer-sheet": f"{TOKENS}:AnswerSheet",
    "best-of-n": f"{TOKENS}:BestOf",
    "careful-answer-sheet": f"{TOKENS}:CarefulAnswerSheet",
    "edited-answer": f"{TOKENS}:EditedAnswer",
    "forged-logprobs": f"{TOKENS}:ForgedLogprobs",
    "fp8-cache": f"{MODELS}:Fp8Cache",
    "fp8-weights": f"{MODELS}:Fp8Weights",
    "hidden-prompt": f"{TOKENS}:HiddenPrompt",
    "int4-weights": f"{MODELS}:Int4Weights",
    "int8-cache": f"{MODELS}:Int8Cache",
    "int8-weights": f"{MODELS}:Int8Weights",
    "near-honest": f"{TOKENS}:NearHonest",
    "older-checkpoint": f"{MODELS}:OlderCheckpoint",
    "other-model": f"{MODELS}:OtherModel",
    "other-seed": f"{TOKENS}:OtherSeed",
    "padded": f"{TOKENS}:Padded",
    "selective-answer-sheet": f"{TOKENS}:SelectiveAnswerSheet",
    "small-model": f"{MODELS}:SmallModel",
    "stale-weights": f"{TOKENS}:StaleWeights",
    "top-k": f"{MODELS}:TopK",
    "truncated": f"{TOKENS}:Truncated",
    "wrong-temperature": f"{TOKENS}:WrongTemperature",
    **PROOF_CHEATS,
}
"""Cheats of workers."""
FALSE_WITNESS, LAZY = "false-witness", "lazy"
VALIDATOR_CHEATS: dict[str, str] = {FALSE_WITNESS: f"{TOKENS}:FalseWitness", LAZY: f"{TOKENS}:Cheat"}
"""Cheats of validators; a worker has no use for them."""


def open_cheat(name: str, honest: "Engine") -> "Cheat":
    module, _, kind = (CHEATS | VALIDATOR_CHEATS)[name].partition(":")
    cheat: Cheat = getattr(import_module(module), kind)(honest)
    return cheat
