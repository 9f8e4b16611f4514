"""Compiles CUDA C++ source with g++ for the emulator, and keeps what it has compiled."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .launcher import Kernel

_HERE = Path(__file__).resolve().parent
_HEADERS = (
    *("cuda_emu.h", "instructions.h", "hooks.h", "runtime.h"),
    *("shim/crt/host_defines.h", "shim/nv/target"),
)
_RUNTIME = ("scheduler.cpp", "checkers.cpp", "copies.cpp")

_OLDEST_GXX = 12
_LARGEST_BATCH = 16  # kernels
# Kernels that are compiled alone: a block has the shared memory of all kernels of its library.
_ALONE = re.compile(r"__shared__ Staged<")
DYNAMIC_SHARED_BYTES = 60 << 10  # the most that an `extern __shared__` array can have

_COMMON = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-Werror=return-type")
# Thread-local variables are set up by the scheduler, not by functions that g++ would call.
# Uninitialised local ones get a pattern that is NaN or huge.
_KERNEL = ("-O1", "-fno-extern-tls-init", "-ftrivial-auto-var-init=pattern")
_CHECKED = (
    # Lines for messages; without what a debugger would step by, a sixth of the time.
    *("-g1", "-gno-statement-frontiers", "-gno-variable-location-views", "-gno-inline-points"),
    "-DEMU_CHECK",
    # A copy of a struct writes all of its bytes. Split into its members it would leave out padding,
    # which a later copy reads.
    "-fno-tree-sra",
    "-fsanitize=thread",
    "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize-coverage=trace-pc",  # counts the steps of loops
    "-fsanitize=alignment,bounds-strict,integer-divide-by-zero,shift,signed-integer-overflow",
    "-fno-sanitize-recover=all",  # a launch ends there: nothing to compile behind it
)
# Without the default libraries, or those of the sanitizers would come along.
_LINK = ("-shared", "-Wl,-Bsymbolic", "-nodefaultlibs")


class CompilerMissingError(RuntimeError):
    """The machine lacks what the emulator needs."""


class CompileError(RuntimeError):
    """g++ does not accept the source."""


def cache_folder() -> Path:
    """Where compiled code is kept: CUPY_LOSSES_EMULATOR_CACHE, or a folder of the user's."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    default = Path(home) / "cupy_losses_emulator"
    folder = Path(os.environ.get("CUPY_LOSSES_EMULATOR_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def gxx() -> str:
    """The path of g++.

    Raises:
        CompilerMissingError: If there is none, or the machine is none that the emulator knows.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CompilerMissingError("the CUDA emulator runs on Linux x86-64 alone")
    found = shutil.which("g++")
    if found is None or shutil.which("addr2line") is None:
        raise CompilerMissingError("the CUDA emulator needs g++ and addr2line")
    if int(_version(found).partition(".")[0]) < _OLDEST_GXX:
        raise CompilerMissingError(f"the CUDA emulator needs g++ {_OLDEST_GXX} or newer")
    return found


def _version(compiler: str) -> str:
    command = [compiler, "-dumpfullversion"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def cuda_headers() -> Path:
    """The folder of cuda_fp16.h.

    Raises:
        CompilerMissingError: If there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    candidates = [
        Path(root) / part for root in roots for part in ("cuda_runtime/include", "cu13/include")
    ]
    candidates.append(Path(os.environ.get("CUDA_PATH", "/usr/local/cuda")) / "include")
    for folder in candidates:
        if (folder / "cuda_fp16.h").is_file():
            return folder
    raise CompilerMissingError("the CUDA emulator needs the wheel nvidia-cuda-runtime-cu12")


class Module:
    """Kernels compiled from one source text, much like cupy.RawModule.

    With `check`, every access of the kernels is watched. Of `options`, include folders and macros
    matter. A source may have one `extern __shared__ unsigned char name[]`.
    """

    def __init__(
        self,
        code: str,
        name_expressions: Sequence[str],
        options: Sequence[str] = ("-DARCHITECTURE=900",),
        check: bool = True,
    ) -> None:
        self._check = check
        dynamic = re.search(r"extern\s+__shared__[^;]*?(\w+)\s*\[\s*\]", code)
        self._dynamic_room = DYNAMIC_SHARED_BYTES if dynamic else 0
        lines = [code, '#line 1 "exports"']
        lines += [f"EMU_EXPORT({_symbol(name)}, ({name}))" for name in name_expressions]
        lines.append("EMU_LIBRARY")
        if dynamic:
            lines.append(f"EMU_DYNAMIC_SHARED({dynamic[1]}, {DYNAMIC_SHARED_BYTES})")
        self._source = "\n".join(lines) + "\n"
        self._flags = [*_kernel_flags(check), *_LINK]
        self._flags += [option for option in options if option[:2] in ("-D", "-I")]
        self.library = cache_folder() / f"{_digest(self._source, self._flags)}.so"

    def build(self) -> None:
        """Compile, unless that has been done before."""
        if self.library.exists():
            return
        _prepare({self._check})
        header = _precompiled_header(self._check)
        with tempfile.TemporaryDirectory(dir=self.library.parent) as folder:
            file = Path(folder) / "kernel.cu"
            file.write_text(self._source, encoding="utf-8")
            inputs = ["-x", "c++", "-include", str(header), str(file)]
            libraries = ["-x", "none", str(_runtime()), "-lm", "-lc"]
            _build(self.library, [*self._flags, *inputs, *libraries])

    def get_function(self, name: str) -> Kernel:
        """The kernel of a name expression."""
        self.build()
        symbol = _symbol(name)
        return Kernel(name, symbol, self.library, _runtime(), self._check, self._dynamic_room)


def _symbol(name: str) -> str:
    return f"emu_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


class Job(NamedTuple):
    """A kernel to compile."""

    code: str
    name: str
    options: tuple[str, ...] = ()
    check: bool = True

    def module(self) -> Module:
        """A library with this kernel alone."""
        return Module(self.code, (self.name,), self.options, self.check)


@functools.cache
def compiled(job: Job) -> Kernel:
    """The kernel."""
    return job.module().get_function(job.name)


def precompile(jobs: Iterable[Job], workers: int | None = None) -> None:
    """Compile many kernels, on all cores, and several at a time, which takes less than each alone.

    Afterwards `compiled` finds them.
    """
    workers = workers or os.cpu_count() or 1
    groups: dict[Any, list[Job]] = {}
    for job in dict.fromkeys(jobs):
        if not job.module().library.exists():
            groups.setdefault((job.code, job.options, job.check), []).append(job)
    batches = []
    for group in groups.values():
        alone = _ALONE.search(group[0].code)
        size = 1 if alone else min(_LARGEST_BATCH, -(-len(group) // workers))
        batches += [group[start : start + size] for start in range(0, len(group), size)]
    _prepare({check for _, _, check in groups})
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(_build_batch, batches))


def _build_batch(jobs: Sequence[Job]) -> None:
    """One library for all, which goes by the names of the libraries of each."""
    first = jobs[0]
    module = Module(first.code, [job.name for job in jobs], first.options, first.check)
    module.build()
    for job in jobs:
        with contextlib.suppress(FileExistsError):
            job.module().library.hardlink_to(module.library)


def _prepare(checks: Iterable[bool]) -> None:
    """Build it, its parts at the same time."""
    with ThreadPoolExecutor() as pool:
        headers = [pool.submit(_precompiled_header, check) for check in checks]
        for part in [pool.submit(_runtime), *headers]:
            part.result()


def _kernel_flags(check: bool) -> list[str]:
    folders = [f"-I{_HERE}", f"-isystem{_HERE / 'shim'}", f"-isystem{cuda_headers()}"]
    return [*_COMMON, *_KERNEL, *_contraction(), *(_CHECKED if check else ()), *folders]


@functools.cache
def _contraction() -> tuple[str, ...]:
    """No fused multiply-add but where the source says so: the package compiles with -fmad=false.

    Let g++ use the instruction for fma() where the processor has it.
    """
    has_fma = " fma " in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return ("-ffp-contract=off", "-mfma") if has_fma else ("-ffp-contract=off",)


@functools.cache
def _runtime() -> Path:
    """The library of the scheduler and the checkers."""
    flags = [*_COMMON, "-O2", "-shared"]
    target = cache_folder() / f"runtime-{_digest('', flags)}.so"
    if not target.exists():
        _build(target, [*flags, *(str(_HERE / file) for file in _RUNTIME)])
    return target


@functools.cache
def _precompiled_header(check: bool) -> Path:
    """cuda_emu.h and NVIDIA's headers, parsed once: half of the time that a kernel would take."""
    flags = _kernel_flags(check)
    folder = cache_folder() / f"header-{_digest('', flags)}"
    header = folder / "precompiled.h"
    target = folder / "precompiled.h.gch"
    if not target.exists():
        folder.mkdir(exist_ok=True)
        unfinished = _unfinished(header)
        unfinished.write_text('#include "cuda_emu.h"\n')
        unfinished.replace(header)
        _build(target, [*flags, "-x", "c++-header", str(header)])
    return header  # g++ takes the other file, which lies beside it


@functools.cache
def _own_sources() -> str:
    return "".join((_HERE / file).read_text(encoding="utf-8") for file in (*_HEADERS, *_RUNTIME))


@functools.cache
def _tools() -> str:
    """What tells one g++ and one version of NVIDIA's headers from another."""
    header = (cuda_headers() / "cuda_fp16.h").stat()
    return f"{_version(gxx())} {header.st_size} {header.st_mtime_ns}"


def _digest(source: str, flags: Sequence[str]) -> str:
    text = "\0".join((_tools(), *flags, str(cache_folder()), _own_sources(), source))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _unfinished(target: Path) -> Path:
    """A new name beside `target`, which replaces it: others may build the same at the same time."""
    return target.with_name(f"{target.name}.{os.urandom(4).hex()}")


def _build(target: Path, arguments: Sequence[str]) -> None:
    """Run g++."""
    unfinished = _unfinished(target)
    command = [gxx(), *arguments, "-o", str(unfinished)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(f"{' '.join(command)}\n{result.stderr[:4000]}")
    unfinished.replace(target)
