"""Tiny checkpoints for tests: those that the devnet begins with."""

from prime_devnet.tiny_model import EOS as EOS
from prime_devnet.tiny_model import LETTERS as LETTERS
from prime_devnet.tiny_model import get_letters as get_letters
from prime_devnet.tiny_model import make_checkpoint as make_checkpoint
from prime_devnet.tiny_model import make_tensors as make_tensors
from prime_devnet.tiny_model import make_tokenizer as make_tokenizer
from prime_devnet.tiny_model import round_to_bf16 as round_to_bf16
from prime_devnet.tiny_model import write_safetensors as write_safetensors
