"""A gguf file as a Hugging Face folder that `policy.model` can name.

    python tools/gguf_folder.py FILE.gguf FOLDER

Quantised weights become float32, rounded as they are in the file. Needs the packages of the extra `gguf`.
The folder is written whole or not at all; one that is there already is left alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lego.errors import ConfigError, LegoError
from lego.trainer.checkpoint import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    try:
        convert(options.file, options.folder)
    except LegoError as error:
        print(f"gguf_folder: {error}\n  {error.hint}", file=sys.stderr)
        return 2
    return 0


def convert(file: Path, folder: Path) -> None:
    """Write `folder`: config, float32 safetensors, tokenizer.json and chat template, all from `file`.

    Raises ConfigError where the file is none that transformers reads, TrainerError where the disk refuses.
    """
    if (folder / "config.json").is_file():
        return
    if not file.is_file():
        raise ConfigError(f"there is no file {file}", hint="name a .gguf file")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", hint="it takes pip install 'lego[gguf]'") from error
    # save_pretrained would write the weights back as the quantised ones they no longer are.
    model.hf_quantizer = None
    model.quantization_method = None
    del model.config.quantization_config

    def write(target: Path) -> None:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)

    write_whole(folder, write)


if __name__ == "__main__":
    sys.exit(main())
