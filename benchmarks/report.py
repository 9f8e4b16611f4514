"""Write docs/benchmarks.md, and the table of the README, from a result file.

python -m benchmarks.report benchmarks/results/NAME.json [benchmarks/results/NAME-rows.json]

The second is for losses over rows, where they were measured in a run of their own.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .measure import ratios

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmark table: begin -->", "<!-- benchmark table: end -->"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fastest(*times: str) -> list[str]:
    """Times of the same work, the least in bold; one that has no other beside it is not."""
    there = [float(time) for time in times if time]
    least = min(there) if len(there) > 1 else None
    return [f"**{time}**" if time and float(time) == least else time for time in times]


BOLD = "Of times of the same work in a row, the least is bold."


def source(results: dict[str, Any], path: Path) -> str:
    """Where the numbers are from."""
    e = results["environment"]
    return (
        f"{e['gpu']}, {e['multiprocessors']} multiprocessors, driver {e['driver']}, CUDA "
        f"{e['cuda']}, CuPy {e['cupy']}, torch {e['torch']}, Python {e['python']}, {e['date']} "
        f"([{path.name}]({{prefix}}benchmarks/results/{path.name}))"
    )


def bandwidth(rows: list[dict[str, Any]]) -> str:
    """Milliseconds, bandwidth and ratios at 2^30 elements."""
    header = ["2^30 elements, ms", "forward", "TB/s", "eager", "compiled", "CuPy"]
    header += ["value_and_grad", "forward + backward", "copy, same bytes", "eager", "compiled"]
    lines = []
    for row in rows:
        expression = row.get("cupy_expression_forward_ms")
        forward, *forward_peers = fastest(
            f"{row['forward_ms']:.3f}",
            f"{row['eager_forward_ms']:.2f}",
            f"{row['compiled_forward_ms']:.3f}",
            f"{expression:.1f}" if expression else "",
        )
        both, *peers = fastest(
            f"{row['forward_backward_ms']:.2f}",
            f"{row['eager_forward_backward_ms']:.2f}",
            f"{row['compiled_forward_backward_ms']:.2f}",
        )
        lines.append(
            [
                f"{row['loss']} {row['dtype']}",
                forward,
                f"{row['forward_bytes'] / row['forward_ms'] / 1e9:.2f}",
                *forward_peers,
                f"{row['value_and_grad_ms']:.2f}",
                both,
                f"{row['copy_of_gradient_bytes_ms']:.2f}",
                *peers,
            ]
        )
    return table(header, lines)


def losses(rows: list[dict[str, Any]], instructions: list[dict[str, Any]]) -> str:
    """Every loss: times, bandwidth against that of the first row, ratios."""
    reference = rows[0]["forward_bytes"] / rows[0]["forward_ms"]
    lines = []
    for row, count in zip(rows, instructions, strict=True):
        forward, both = row["forward_ms"], row["forward_backward_ms"]
        share = row["forward_bytes"] / forward / reference
        own_forward, *forward_peers = fastest(
            *(f"{row[f'{who}forward_ms']:.2f}" for who in ("", "eager_", "compiled_"))
        )
        own_both, *peers = fastest(
            *(f"{row[f'{who}forward_backward_ms']:.2f}" for who in ("", "eager_", "compiled_"))
        )
        lines.append(
            [
                f"`{row['loss']}`",
                own_forward,
                f"{100 * share:.0f} %",
                f"{count['forward']:.0f}",
                *forward_peers,
                own_both,
                f"{row['gradient_bytes'] / both / 1e9:.2f}",
                f"{count['forward_backward']:.0f}",
                *peers,
                f"{row['eager_forward_backward_ms'] / both:.1f}",
                f"{row['compiled_forward_backward_ms'] / both:.2f}",
            ]
        )
    header = ["2^30 elements of float32, ms", "forward", "of MSE's bandwidth", "instructions"]
    header += ["eager", "compiled", "forward + backward", "TB/s", "instructions", "eager"]
    header += ["compiled", "eager / ours", "compiled / ours"]
    return table(header, lines)


def halves_section(path: Path) -> list[str]:
    """The part on every loss in half precision; none without results of it."""
    path = path.with_name(f"{path.stem}-halves.json")
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    lines = []
    for row in results["halves"]:
        units = ratios(row)
        line = [f"`{row['loss']}`"]
        for key in ("forward_ms", "forward_backward_ms"):
            own, *peers = fastest(
                *(f"{row[f'{who}{key}']:.2f}" for who in ("", "eager_", "compiled_"))
            )
            line += [own, f"{units[key]:.2f}", *peers]
        lines.append(line)
    header = ["2^30 elements of bfloat16, ms"]
    for work in ("forward", "forward + backward"):
        header += [work, "times the bytes", "eager", "compiled"]
    return [
        "## Every loss in half precision",
        f"`python -m benchmarks.run --only halves`: {source(results, path).format(prefix='../')}.",
        table(header, lines),
        "The same losses and shapes. Times the bytes: in units of what passes over dense operands "
        "of as many bytes take, as in the picture below.",
    ]


def milliseconds(row: dict[str, Any], key: str) -> str:
    """A time with three digits, nothing where there is none."""
    time = row.get(key)
    if time is None:
        return ""
    return f"{time:.{3 if time < 1 else 2 if time < 10 else 1 if time < 100 else 0}f}"


def problem(row: dict[str, Any]) -> str:
    """The name, shape and dtype of a problem over rows."""
    return f"`{row['loss']}` {' × '.join(map(str, row['shape']))} {row['dtype']}"


PEERS = ("eager_", "compiled_", "liger_")
HOSTS = ("numpy", "torch")


def compared(row: dict[str, Any], key: str) -> list[str]:
    """The time of this package and those of its peers."""
    return fastest(*(milliseconds(row, f"{peer}{key}") for peer in ("", *PEERS)))


def over_rows(result: dict[str, Any]) -> str:
    """Losses over rows: times, bandwidth against that of MSE, peers."""
    reference = result["mse_forward_bytes"] / result["mse_forward_ms"]
    lines = []
    for row in result["problems"]:
        both, speed = row.get("forward_backward_ms"), row["forward_bytes"] / row["forward_ms"]
        large = row["forward_bytes"] > 1 << 25  # else the launch counts
        forward, *forward_peers = compared(row, "forward_ms")
        own, *peers = compared(row, "forward_backward_ms")
        lines.append(
            [
                problem(row),
                forward,
                f"{speed / 1e9:.2f}" if large else "",
                f"{100 * speed / reference:.0f} %" if large else "",
                f"{100 * row['mse_forward_ms'] / row['forward_ms']:.0f} %" if large else "",
                *forward_peers,
                milliseconds(row, "value_and_grad_ms"),
                own,
                f"{row['gradient_bytes'] / both / 1e9:.2f}" if both else "",
                *peers,
                f"{row['error_ulp']:.0f}",
            ]
        )
    header = ["ms", "forward", "TB/s", "of MSE's bandwidth", "at as many bytes"]
    header += ["eager", "compiled", "Liger"]
    header += ["value_and_grad", "forward + backward", "TB/s", "eager", "compiled", "Liger"]
    return table([*header, "error, ulp"], lines)


def memory_over_rows(rows: list[dict[str, Any]]) -> str:
    """Peak memory of forward and backward beyond the inputs, in gradients."""
    lines = [
        [
            problem(row),
            *(
                f"{row[f'{peer}peak'] / row['gradient_bytes']:.3f}" if f"{peer}peak" in row else ""
                for peer in ("", "overwriting_", "eager_", "liger_")
            ),
        ]
        for row in rows
    ]
    header = ["peak of forward and backward, in gradients", "cupy_losses", "overwrite_input"]
    return table([*header, "eager", "Liger"], lines)


def orders_section(results: dict[str, Any]) -> list[str]:
    """The part on operands whose memory orders differ; none without results of them."""
    header = ["mse_loss, ms", "forward", "TB/s", "eager", "compiled", "value_and_grad", "TB/s"]
    header += ["forward + backward", "eager", "compiled"]
    lines = []
    for row in results.get("orders", ()):
        forward, *forward_peers = fastest(
            f"{row['forward_ms']:.3f}",
            f"{row['eager_forward_ms']:.2f}",
            f"{row['compiled_forward_ms']:.2f}",
        )
        lines.append(
            [
                f"{row['orders']}, {' × '.join(map(str, row['shape']))} {row['dtype']}",
                forward,
                f"{row['forward_bytes'] / row['forward_ms'] / 1e9:.2f}",
                *forward_peers,
                f"{row['value_and_grad_ms']:.3f}",
                f"{1.5 * row['forward_bytes'] / row['value_and_grad_ms'] / 1e9:.2f}",
                *fastest(
                    f"{row['forward_backward_ms']:.3f}",
                    f"{row['eager_forward_backward_ms']:.2f}",
                    f"{row['compiled_forward_backward_ms']:.2f}",
                ),
            ]
        )
    return ["## Memory orders that differ", table(header, lines)] if lines else []


def broadcast_section(path: Path) -> list[str]:
    """The part on operands that are broadcast; none without results of them."""
    path = path.with_name(f"{path.stem}-broadcast.json")
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    header = ["ms", "forward", "eager", "compiled"]
    for wanted in ("input", "target", "both"):
        header += [f"with gradient by {wanted}", "eager", "compiled"]
    lines = []
    for row in results["broadcast"]:
        shapes = [row["shape"], *([row["target"]] if row["target"] != row["shape"] else [])]
        text = ", ".join(" × ".join(map(str, shape)) or "()" for shape in shapes)
        line = [f"`{row['loss'].split(',')[0]}` {text} {row['dtype']}"]
        for what in ("forward", "input", "target", "both"):
            times = [row.get(f"{peer}{what}_ms") for peer in ("", "eager_", "compiled_")]
            line += fastest(*("" if time is None else f"{time:.3f}" for time in times))
        lines.append(line)
    return [
        "## Operands that are broadcast",
        "`python -m benchmarks.run --only broadcast`: "
        f"{source(results, path).format(prefix='../')}.",
        table(header, lines),
        "Shapes of input and target, or of these and of `pos_weight` or `var`. A gradient of what "
        "is broadcast is a sum, of a second pass. "
        "`multilabel_soft_margin_loss` is that of each row.",
    ]


def options_section(path: Path) -> list[str]:
    """The part on the options of cross_entropy; none without results of them."""
    path = path.with_name(f"{path.stem}-options.json")
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    works = ("forward_ms", "eager_forward_ms", "value_and_grad_ms", "eager_forward_backward_ms")
    lines: dict[str, list[str]] = {}
    for row in results["options"]:
        shape = " × ".join(map(str, row["shape"]))
        ratios = [row["ratios"].get(work) for work in works]
        line = lines.setdefault(f"`{row['loss']}` {shape}", [])
        line += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    header = ["times the bytes"]
    for dtype in dict.fromkeys(row["dtype"] for row in results["options"]):
        header += [f"{dtype}: forward", "eager", "with gradient", "eager"]
    return [
        "## Options of cross_entropy",
        "`python -m benchmarks.sweep --only options --peers eager`: "
        f"{source(results, path).format(prefix='../')}.",
        table(header, [[name, *line] for name, line in lines.items()]),
        "Times in units of the time of the bytes, as in the picture below; (N, C) or (N, C, d…). "
        "With gradient: `value_and_grad`, and forward and backward of torch. Where eager is "
        "missing, its loss was more than 1% off.",
    ]


def over_rows_section(results: dict[str, Any], path: Path) -> list[str]:
    """The part on losses over rows; none without results of them."""
    result = results.get("rows")
    if result is None:
        return []
    version = results["environment"].get("liger-kernel")
    peer = f"Liger is Liger-Kernel {version}" if version else "Liger is Liger-Kernel, not installed"
    return [
        "## Losses over rows",
        f"From {source(results, path).format(prefix='../')}. {result.get('note', '')}".rstrip(),
        over_rows(result),
        "Rows × elements of a row, before them the number of vectors. Gradients are by `input`, or "
        "by all vectors. Bytes: every element read once and every gradient written once; "
        "`nll_loss` reads one element of a row, `multilabel_margin_loss` the labels that are "
        "there, 8 of a row and the end. MSE's bandwidth is that of its forward pass at 2^30 "
        "elements of float32, in the same run; beside it that at as many bytes as the row of this "
        f"table reads, taken in turn with it. {peer}; it writes the gradient over the input, and "
        "every call waits for the device.",
        *([memory_over_rows(result["memory"])] if "memory" in result else []),
    ]


def small(result: dict[str, Any]) -> str:
    """Host time of small calls."""
    pairs = [
        ("1024 elements, torch: forward", "forward_us", "eager_forward_us"),
        ("the same, input requires grad", "forward_with_graph_us", "eager_forward_with_graph_us"),
        ("forward and backward", "forward_backward_us", "eager_forward_backward_us"),
        ("1024 elements, CuPy: forward", "cupy_forward_us", "cupy_expression_us"),
        ("2^20 elements, torch: forward, as called", "forward_2_20_us", "eager_forward_2_20_us"),
        (
            "the same in a CUDA graph: device time",
            "forward_2_20_device_us",
            "eager_forward_2_20_device_us",
        ),
    ]
    rows = [[label, *fastest(f"{result[a]:.1f}", f"{result[b]:.1f}")] for label, a, b in pairs]
    rows += [[f"sharing: `{k}`", f"{v:.1f}", ""] for k, v in result["sharing_us"].items()]
    return table(["µs", "cupy_losses", "F.mse_loss, or the CuPy expression"], rows)


def steps_section(path: Path) -> list[str]:
    """The part on small steps of training; none without results of them."""
    path = path.with_name(f"{path.stem}-steps.json")
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    header = ["host time, µs", "this package", "torch", "ratio"]
    lines = [
        [
            f"{section}: {label}",
            *fastest(f"{row['ours']:.1f}", f"{row['torch']:.1f}" if "torch" in row else ""),
            f"{row['ours'] / row['torch']:.2f}" if "torch" in row else "",
        ]
        for section in ("eager", "compiled", "network", "cupy")
        for label, row in results[section].items()
    ]
    return [
        "## Small steps of training",
        "`python -m benchmarks.steps`: 1024 elements or 32 × 10 logits, "
        f"{source(results, path).format(prefix='../')}. This is another run than that of the table "
        "above, so that the same call has another time here.",
        table(header, lines),
    ]


def accelerated_section(path: Path) -> list[str]:
    """The part on a program that is written for torch alone; none without results of it."""
    path = path.with_name(f"{path.stem}-accelerated.json")
    if not path.exists():
        return []
    results = json.loads(path.read_text())
    losses, first = results["last_losses"], (results["torch_s"][0], results["accelerated_s"][0])
    plain, accelerated = min(results["torch_s"]), min(results["accelerated_s"])
    return [
        "## A program of torch, accelerated",
        f"`python -m benchmarks.accelerated`: {results['steps']} steps of "
        f"`examples/{results['example']}`, its start included, "
        f"{source(results, path).format(prefix='../')}. With torch's loss {plain:.1f} s, "
        f"accelerated {accelerated:.1f} s: the shorter of {len(results['torch_s'])} runs each, in "
        "turn. Later runs find their kernels in caches on disk; the first ones took "
        f"{first[0]:.1f} s and {first[1]:.1f} s. The last loss is {losses['torch']:.4f} and "
        f"{losses['accelerated']:.4f}. The report:",
        "\n".join(["```", *results["report"], "```"]),
    ]


def host_table(path: Path) -> list[str]:
    """What was measured on NumPy arrays, on one CPU."""
    results = json.loads(path.read_text())
    e = results["environment"]
    lines = []
    for row in results["problems"]:
        line = [problem(row)]
        for what in ("forward", "both"):
            time = row[f"{what}_us"]
            ratios = [f"{time / row[f'{peer}_{what}_us']:.2f}" for peer in HOSTS]
            least = all(float(ratio) <= 1.0 for ratio in ratios)
            line += [f"**{time:.0f}**" if least else f"{time:.0f}", *ratios]
        line += [f"{row[f'{who}both_peak'] / 2**20:.1f}" for who in ("", "numpy_")]
        lines.append(line)
    header = ["CPU time, µs", "forward", "× NumPy", "× torch"]
    header += ["value_and_grad", "× NumPy", "× torch", "MiB", "NumPy's"]
    return [
        f"{e['cpu']}, NumPy {e['numpy']}, torch {e['torch']}, Python {e['python']}, {e['date']} "
        f"([{path.name}](../benchmarks/results/{path.name})):",
        table(header, lines),
    ]


def host_section(path: Path) -> list[str]:
    """The part on NumPy arrays; none without results of them."""
    paths = [path.with_name(name) for name in ("host.json", "host-epyc.json")]
    tables = [part for own in paths if own.exists() for part in host_table(own)]
    if not tables:
        return []
    return [
        "## The host backend",
        "`python -m benchmarks.host`, medians in turn with plain NumPy in the dtype of the "
        "operands, and with torch on one thread. A time is bold where neither of them takes less. "
        "MiB is the peak of what is allocated beside the results.",
        *tables,
        "This backend computes in float64 whatever the operands are, a bounded chunk at a time, as "
        "NumPy's functions go one after the other. torch's functions for the CPU compute float32 "
        "in float32, some in one pass.",
    ]


def memory(result: dict[str, Any]) -> str:
    """Memory beyond the inputs, in gradients."""
    unit = result["gradient_bytes"]
    names = [name for name in result if name.endswith("_loss") and not name.startswith("eager")]
    columns = [
        (who, key)
        for key in ("kept_without_grad", "peak_forward_backward")
        for who in ("", "eager_")
    ]
    rows = [
        [name, *(f"{result[who + name][key] / unit:.3f}" for who, key in columns)] for name in names
    ]
    header = ["in gradients of 1 GiB", "kept by a loss without grad", "eager"]
    return table([*header, "peak of forward and backward", "eager"], rows)


def scaling(rows: list[dict[str, Any]]) -> str:
    """Time an element over the sizes."""
    lines = [
        [
            f"2^{row['elements'].bit_length() - 1}",
            f"{row['forward_ms'] * 1e3:.1f}",
            f"{row['forward_ps_per_element']:.3g}",
            f"{row['value_and_grad_ms'] * 1e3:.1f}",
            f"{row['value_and_grad_ps_per_element']:.3g}",
            f"{row['error_ulp']:.0f}",
        ]
        for row in rows
    ]
    header = ["elements", "forward, µs", "ps each", "value_and_grad, µs", "ps each", "error, ulp"]
    return table(header, lines)


def accuracy(rows: list[dict[str, Any]]) -> str:
    """The worst errors."""
    lines = [
        [
            f"{row['loss']} {row['dtype']}",
            *(f"{row[key]:.2f}" for key in ("below 4096", "from 4096", "gradient")),
        ]
        for row in rows
    ]
    return table(["ulp", "below 4096 elements", "from 4096 up", "gradient"], lines)


SWEEPS = """
`python -m benchmarks.sweep --output benchmarks/results/NAME.json` times `cross_entropy` of 2^27
logits over class counts from 2 to 262144 (powers of two, counts of data sets and vocabularies, odd
ones, small multiples), and with the classes along another axis than the last, forward and with the
gradient; the other losses over rows, of 3 to 10000 elements; and the options of `cross_entropy`.
Each loss, and a sample of its gradients, is checked against float64 first. torch, torch.compile,
Liger-Kernel and QuACK are timed in the same run; those that are not installed are left out, and
where one fails the result says why. `--quick` takes a few shapes, `--only classes_last`,
`classes_strided`, `row_lengths` or `options` one part, `--classes 21 1000` these counts,
`--dtype float16` another dtype than float32 and bfloat16, `--peers eager quack` these peers,
`--peers` none. Most of the time goes to compilers: those of
torch.compile and QuACK work anew for each shape.

`python -m benchmarks.sweep --draw benchmarks/results/NAME.json PICTURE.svg` draws the times in
units of the time of the bytes: what passes over dense operands take on an H200, which is 4.62 TB/s
and 4 µs where they only read, 4.1 TB/s and 6 µs where they also write. It needs matplotlib (`pip
install -e ".[dev]"`) and no GPU. It takes several result files too, such as those of parts of a
sweep, and that of `benchmarks.run --only orders`.

This picture is made of `benchmarks/results/h200-classes-last.json` and `h200-row-lengths.json`,
both beside torch, `h200-strided.json` and `h200-orders.json`, both beside torch and torch.compile.
Where torch is missing, its bfloat16 loss was more than 1% off. For classes that are not last,
torch.compile takes {cross_entropy} times as long as `cross_entropy`, and {two_orders} times where
scores and probabilities differ in their memory order. For `nll_loss` it takes
{compiled_forward} times as long, torch {eager_forward} times; forward and backward {compiled_both}
and {eager_both} times. For rows of {lengths} elements, torch takes {row_lengths} times as long as
losses of this package. What the constants of kernels over rows were chosen by is in
`benchmarks/results/h200-rows-tuning.txt`.

![The time of cross_entropy and mse_loss in units of the time of their bytes](h200-sweep.svg)
"""


def sweeps() -> list[str]:
    """The part on sweeps; its figures are those of the files that it names."""
    strided, lengths = (
        json.loads((RESULTS / f"h200-{name}.json").read_text())[section]
        for name, section in (("strided", "classes_strided"), ("row-lengths", "row_lengths"))
    )
    own = [row for row in strided if row["loss"].split(",")[0] == "cross_entropy"]
    two_orders = [row for row in strided if row["loss"].endswith("two memory orders")]
    nll = [row for row in strided if row["loss"] == "nll_loss"]
    text = SWEEPS.format(
        cross_entropy=slower(own, "compiled", "forward_ms", "forward_backward_ms"),
        two_orders=slower(two_orders, "compiled", "forward_ms", "forward_backward_ms"),
        compiled_forward=slower(nll, "compiled", "forward_ms"),
        eager_forward=slower(nll, "eager", "forward_ms"),
        compiled_both=slower(nll, "compiled", "forward_backward_ms"),
        eager_both=slower(nll, "eager", "forward_backward_ms"),
        lengths=" to ".join(str(end(row["shape"][-1] for row in lengths)) for end in (min, max)),
        row_lengths=slower(lengths, "eager", "forward_ms", "forward_backward_ms"),
    )
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def slower(rows: list[dict[str, Any]], peer: str, *works: str) -> str:
    """How many times as long a peer takes, from the least to the most, where it was timed."""
    found = [
        row[f"{peer}_{work}"] / row[work]
        for row in rows
        for work in works
        if f"{peer}_{work}" in row
    ]
    return " to ".join(f"{x:.{2 if x < 100 else 0}f}" for x in (min(found), max(found)))


def first_calls(results: dict[str, Any]) -> str:
    """Seconds of the first call in a process."""
    lines = [
        [call, f"{seconds['empty_cache_s']:.2f}", f"{seconds['warm_cache_s']:.3f}"]
        for call, seconds in results.items()
    ]
    return table(["call", "empty kernel cache, s", "warm, s"], lines)


def document(results: dict[str, Any], path: Path, rows: dict[str, Any], rows_path: Path) -> str:
    """The page of all results."""
    parts = [
        "# Benchmarks",
        f"Generated by `python -m benchmarks.report` from `python -m benchmarks.run` on "
        f"{source(results, path).format(prefix='../')}.",
        "Every result of this package was checked against float64 before it was timed. Kernels are "
        "timed by device events, medians, peers in turn, on inputs drawn for each row; calls by "
        "the host's clock. " + BOLD,
        "## Large arrays",
        bandwidth(results["bandwidth"]),
        "`copy, same bytes` is the time in which a device-to-device copy moves the bytes of input, "
        "target and gradient. `compiled` is `torch.compile` of torch's function. The arrays "
        "have one dimension.",
        "## Every loss",
        losses(results["losses"], results["instructions"]),
        "torch's own function where it has one, else its expression in torch; the backward pass is "
        "that by `input`. The arrays have shape (32768, 32768): of `mse_loss`, torch.compile then "
        "makes one kernel for the loss and one for the gradient, and of arrays of one dimension, "
        "as above, one for both. Bytes: each operand read once, the gradient written once. "
        "Instructions: thread instructions for an element. A multiprocessor issues 128 a clock, so "
        "that this GPU at 1.98 GHz and 4.8 TB/s could issue 55 in the time of 8 bytes, if none had "
        "to wait.",
        *halves_section(path),
        *orders_section(results),
        *broadcast_section(path),
        *over_rows_section(rows, rows_path),
        *options_section(path),
        "## Sweeps over shapes",
        *sweeps(),
        "## Small arrays",
        small(results["small"]),
        *steps_section(path),
        *accelerated_section(path),
        *host_section(path),
        "## Memory",
        memory(results["memory"]),
        "## First call in a process",
        "Seconds of one call on 4096 × 1000 elements of float32, beyond importing CuPy and "
        "creating the context. A kernel is compiled once, for the cache; each process loads it.",
        first_calls(results["first_call"]),
        "## Scaling, mse_loss in float32",
        scaling(results["scaling"]),
        "## Accuracy",
        "The worst error of mean and sum, and of an element of their gradients, against float64 "
        "rounded to the dtype, over sizes from 1 to 2^33.",
        accuracy(results["accuracy"]),
    ]
    return "\n\n".join(parts) + "\n"


def readme_block(results: dict[str, Any], path: Path, rows: dict[str, Any], rows_path: Path) -> str:
    """The table of the README."""
    header = ["2^30 elements, ms", "forward", "torch", "compiled", "forward + backward", "torch"]
    lines = [
        [
            f"`{row['loss']}` {row['dtype']}",
            *(
                text
                for key in ("forward_ms", "forward_backward_ms")
                for text in fastest(
                    *(f"{row[f'{who}{key}']:.2f}" for who in ("", "eager_", "compiled_"))
                )
            ),
        ]
        for row in results["bandwidth"]
    ]
    parts = [table([*header, "compiled"], lines), *readme_over_rows(rows)]
    sources = [source(results, path)]
    if rows_path != path:
        sources.append(f"over rows: {source(rows, rows_path)}")
    peers = "`compiled` is `torch.compile` of torch's function, Liger is Liger-Kernel."
    parts.append(f"{BOLD} {peers} {'; '.join(sources).format(prefix='')}")
    return "\n\n".join([BEGIN, *parts, *readme_steps(path), END])


def readme_steps(path: Path) -> list[str]:
    """What a small step costs the host; none without results of it."""
    path = path.with_name(f"{path.stem}-steps.json")
    if not path.exists():
        return []
    row = json.loads(path.read_text())["eager"]["mse_loss, forward and backward"]
    return [
        "Steps on few elements wait for the host: `mse_loss` of 1024 and its backward pass take it "
        f"{row['ours']:.0f} µs, {row['ours'] / row['torch']:.1f} times as long as torch's own "
        "([measured](docs/benchmarks.md#small-steps-of-training))."
    ]


def readme_over_rows(results: dict[str, Any]) -> list[str]:
    """The table of the main problems over rows; none without results of them."""
    if "rows" not in results:
        return []
    lines = [
        [
            problem(row),
            *(text for key in ("forward_ms", "forward_backward_ms") for text in compared(row, key)),
        ]
        for row in results["rows"]["problems"][:3]
    ]
    header = ["rows, ms", "forward", "torch", "compiled", "Liger"]
    return [table([*header, "forward + backward", "torch", "compiled", "Liger"], lines)]


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument("results", type=Path, help="a result file of benchmarks.run")
    parser.add_argument(
        "rows", type=Path, nargs="?", help="another one, for losses over rows (default: the first)"
    )
    arguments = parser.parse_args()
    path, rows_path = arguments.results, arguments.rows or arguments.results
    try:
        results, rows = json.loads(path.read_text()), json.loads(rows_path.read_text())
        page = document(results, path, rows, rows_path)
        block = readme_block(results, path, rows, rows_path)
    except OSError as error:
        parser.error(f"{error.filename} cannot be read: {error.strerror}")
    except (KeyError, TypeError, ValueError):
        parser.error(f"{path} and {rows_path} must be results of a whole run of benchmarks.run")
    (ROOT / "docs" / "benchmarks.md").write_text(page)
    readme = ROOT / "README.md"
    text = readme.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    readme.write_text(head + block + tail)


if __name__ == "__main__":
    main()
