#!/bin/sh
# A trained run's files, read by the packages that everybody else reads them with: numpy and
# safetensors, from PyPI, in an environment that is thrown away. Skipped (77) where they cannot be
# had.
#   judges_test.sh LOCKSTEP EMPTY_DIRECTORY JUDGE.py
set -eu
lockstep=$1 work=$2 judge=$3
rm -rf "$work"
mkdir -p "$work"
cd "$work"
python3 -m venv environment >venv.log 2>&1 &&
    timeout 120 environment/bin/pip install -q --retries 1 numpy safetensors >pip.log 2>&1 || {
    echo "skipped: numpy and safetensors cannot be installed here"
    exit 77
}
"$lockstep" train made-up-cnn --run-dir run --set steps=3 >train.log
"$lockstep" predict made-up-cnn --run-dir run --output logits.npy >predict.log
for layout in keras torch; do
    "$lockstep" checkpoint export run --output $layout.safetensors --layout $layout >>export.log
done
environment/bin/python "$judge" run/checkpoints/*.safetensors logits.npy keras.safetensors \
    torch.safetensors
