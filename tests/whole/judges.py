"""judges.py - a Python with the packages of a framework, for tests that let it judge: made as the
comparison with other frameworks makes it, in the folder `environment`."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def python_of(kind, packages):
    """The path of a Python that has `kind` and the packages; ends the test as skipped (77) where
    they cannot be had."""
    loader = importlib.machinery.SourceFileLoader("peers", HERE + "/../bench/peers")
    peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(peers)
    try:
        os.mkdir("environment")
        place = os.path.abspath("environment")
        if kind != "torch":
            module = {"onnx": "onnxruntime"}.get(kind, kind)
            return peers.environment(place, kind, module, [packages])
        python = peers.torch_python(place)
        if packages:
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True,
                           timeout=300)
        return python
    except (peers.Left_out, subprocess.SubprocessError) as why:
        print(f"skipped: {kind} cannot be installed here:", why)
        sys.exit(77)
