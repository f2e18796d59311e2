"""Everything that is worth running on a CUDA machine, in one command.

Run ``python -m benchmarks.device --out results``. The parts run one after another, each in its own
process and for at most ten minutes: the tests that need a device, the benchmarks, and with
``--fasta`` a training run of Caduceus 118x4 with 2^20 bases a step. The output of a part goes to
``PART.txt`` and its measurements to ``PART.json`` in the folder; ``device.json`` says how each part
ended. A part that fails is reported and the next one runs; the exit code is then 1. ``--rehearse``
runs the same parts at small size on the CPU, and one test of the kernels in Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common import begin, positive, refuse

ROOT = Path(__file__).parents[1]
BATCH = 256
TESTS = ("tests/parity/test_triton.py", "tests/parity/test_selective_scan.py",
         "tests/parity/test_mamba_ssm_grid.py", "tests/parity/test_causal_conv1d.py",
         "tests/parity/test_ssd.py", "tests/parity/test_block_attention.py",
         "tests/integration/test_cuda.py")  # fmt: skip
REHEARSED_TESTS = ("tests/parity/test_triton.py::test_scan_equals_reference[length_1]",
                   "tests/integration/test_cuda.py")  # fmt: skip
BENCHMARKS = {
    "scan": ["scan"],
    "caduceus_step": ["caduceus_step", "--dtype", "bfloat16", "--profile"],
    "ssd_step": ["caduceus_step", "--dtype", "bfloat16", "--shape", "256x4x1024"],
    "transformer_step": ["transformer_step"],
    "block_attention": ["block_attention"],
    "sampling": ["sampling"],
    "block_sampling": ["block_sampling"],
}
"""Module and options of each benchmark."""

ON_DEVICE = {"ssd_step": ["--sides", "triton", "ssd"]}
"""Options that are only for a device."""

SMALL = {
    "scan": ["--batch", "1", "--channels", "3", "--length", "8", "--states", "2"],
    "caduceus_step": ["--shape", "6x1x16", "--batch", "2"],
    "ssd_step": ["--shape", "8x1x16", "--batch", "2", "--sides", "ours", "ssd"],
    "transformer_step": ["--shape", "8x1x2x16", "--vocabulary", "11", "--product", "16"],
    "block_attention": ["--shape", "8x1x2x16", "--vocabulary", "11", "--batch", "1",
                        "--block", "4"],
    "sampling": ["--rows", "2", "--length", "12", "--steps", "4", "--width", "8", "--layers", "1"],
    "block_sampling": ["--length", "64", "--places", "1", "--width", "8", "--layers", "1",
                       "--heads", "2"],
}  # fmt: skip
"""Options that make a rehearsal small."""


@dataclass(frozen=True)
class Part:
    """A command with its name.

    Attributes:
        name: Name of the files that it leaves.
        command: The command line.
        seconds: When it is stopped.
    """

    name: str
    command: tuple[str, ...]
    seconds: int

    def run(self, out: Path, environment: Mapping[str, str]) -> dict[str, object]:
        """Run the command, write what it prints, and say how it ended."""
        start = time.monotonic()
        with (out / f"{self.name}.txt").open("w") as page:
            page.write(f"$ {' '.join(self.command)}\n")
            page.flush()
            try:
                code = subprocess.run(
                    self.command,
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdout=page,
                    stderr=subprocess.STDOUT,
                    timeout=self.seconds,
                    check=False,
                ).returncode
                ended = "passed" if code == 0 else f"failed with exit code {code}"
            except subprocess.TimeoutExpired:
                ended = f"stopped after {self.seconds} s"
        spent = round(time.monotonic() - start, 1)
        return {"part": self.name, "ended": ended, "seconds": spent, "command": self.command}


def parts(options: Namespace) -> list[Part]:
    """Return every part in the order in which they run."""
    python, small, out = sys.executable, options.rehearse, options.out.absolute()
    device = "cpu" if small else "cuda"
    workers = str(min(8, os.cpu_count() or 1))
    tests = REHEARSED_TESTS if small else TESTS
    found = [Part("tests", (python, "-m", "pytest", "-q", "-n", workers, *tests), options.seconds)]
    for name, words in BENCHMARKS.items():
        extra = SMALL[name] if small else ON_DEVICE.get(name, [])
        command = [python, "-m", f"benchmarks.{words[0]}", *words[1:], "--device", device, *extra]
        command += ["--pairs", "1"] if small else []
        command += ["--json", str(out / f"{name}.json")]
        found.append(Part(name, tuple(command), options.seconds))
    run = out / "run"
    train = [python, "-m", "seqdiff.cli", "train", *training(options), "--output", str(run)]
    evaluate = [python, "-m", "seqdiff.cli", "evaluate", str(run), "--device", device]
    evaluate += ["--json", str(out / "evaluate.json")]
    found.append(Part("train", tuple(train), options.seconds))
    return [*found, Part("evaluate", tuple(evaluate), options.seconds)]


def training(options: Namespace) -> list[str]:
    """Return the configuration and flags of the training run: 2^20 tokens a step on a device."""
    folder = ROOT / "configs" / "experiment" / "genomics"
    if options.rehearse:
        flags = ["--backbone.d_model", "8", "--backbone.n_layer", "1", "--data.num_train", "64"]
        return [str(folder / "demo.yaml"), "--trainer.max_steps", "2", *flags]
    minutes, seconds = divmod(max(options.seconds - 60, options.seconds // 2), 60)
    flags = ["--data.fasta", str(options.fasta and options.fasta.absolute())]
    flags += ["--data.batch_size", str(BATCH)]
    flags += ["--trainer.accumulate_grad_batches", str((1 << 20) // 1024 // BATCH)]
    flags += ["--data.num_workers", "8", "--data.split", "[0.998,0.001,0.001]"]
    flags += ["--trainer.accelerator", "gpu", "--trainer.precision", "bf16-mixed"]
    flags += ["--trainer.max_time", f"00:00:{minutes:02d}:{seconds:02d}"]
    flags += ["--optim.lr", "8e-3", "--optim.warmup_steps", "50", "--ema_decay", "0.99"]
    flags += ["--trainer.val_check_interval", "1.0"]
    return [str(folder / "fasta.yaml"), *flags]


def main(arguments: list[str] | None = None) -> None:
    """Run the parts and write how they ended."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--fasta", type=Path, help="DNA of the training run; without it, no run")
    parser.add_argument("--parts", nargs="+", help="run only these")
    parser.add_argument("--seconds", type=positive, default=600, help="limit of each part")
    parser.add_argument("--rehearse", action="store_true", help="small, on the CPU")
    options = parser.parse_args(arguments)
    if not options.rehearse and not torch.cuda.is_available():
        refuse("device: PyTorch sees no CUDA device; --rehearse runs the parts small on the CPU")
    if options.fasta and not options.fasta.is_file():
        refuse(f"device.fasta must be a file, got {options.fasta}; check the path")
    chosen = parts(options)
    names = [part.name for part in chosen]
    unknown = [name for name in options.parts or [] if name not in names]
    if unknown:
        refuse(f"device.parts must be among {', '.join(names)}, got {unknown[0]}")
    if not (options.rehearse or options.fasta):
        chosen = [part for part in chosen if part.name not in ("train", "evaluate")]
    chosen = [part for part in chosen if part.name in (options.parts or names)]
    options.out.mkdir(parents=True, exist_ok=True)
    described = begin("cpu" if options.rehearse else "cuda")
    environment = {"TRITON_INTERPRET": "1"} if options.rehearse else {}
    ended = []
    for part in chosen:
        print(f"{part.name}: running", flush=True)
        ended.append(part.run(options.out, environment))
        print(f"{part.name}: {ended[-1]['ended']} ({ended[-1]['seconds']} s)", flush=True)
        document = {"machine": described, "parts": ended}
        (options.out / "device.json").write_text(json.dumps(document, indent=2) + "\n")
    failed = [str(part["part"]) for part in ended if part["ended"] != "passed"]
    if failed:
        print(f"device: {', '.join(failed)} failed; see the .txt of each in {options.out}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
